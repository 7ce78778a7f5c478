"""Readiness of components."""

from pathlib import Path

from support.components import component, kubeconfig
from support.fake_apiserver import FakeApi

from batholith.model.names import QUEUES

ALONE = ("--leader-elect=false", "--force-beside-volcano")


async def test_controllers_are_ready_once_the_default_queue_exists(
    tmp_path: Path,
) -> None:
    """A job that is submitted once the cluster is ready is not denied for a missing queue."""
    async with FakeApi() as api:
        config = kubeconfig(tmp_path / "config", api.credentials)
        api.inject_fault(500, times=6, writes=True)
        async with component("controllers", *ALONE, "--kubeconfig", str(config)) as one:
            await one.wait_ready()
            assert "default" in {each["metadata"]["name"] for each in api.objects(QUEUES).values()}
