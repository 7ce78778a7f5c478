"""docs/examples/kubernetes/tenancy.yaml: teams are kept in their queues."""

import asyncio
from pathlib import Path
from typing import Any

from support.jobs import task
from support.kubectl import Kubectl, needs_kubectl
from support.polling import wait_until_true
from support.realkube import RealKubeOptions, real_server

from batholith.kube.errors import ForbiddenError, InvalidError
from batholith.model import crds
from batholith.model.names import JOBS, NAMESPACES

EXAMPLE = Path(__file__).parents[2] / "docs/examples/kubernetes/tenancy.yaml"


def job(name: str, queue: str) -> dict[str, Any]:
    container = {"name": "main", "image": "busybox"}
    one = task(replicas=1) | {
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}
    }
    return {"metadata": {"name": name}, "spec": {"queue": queue, "tasks": [one]}}


async def test_a_team_may_use_its_own_queue_only(tmp_path: Path) -> None:
    needs_kubectl()
    async with (
        real_server(tmp_path, RealKubeOptions(crds=crds.load())) as server,
        server.client() as client,
    ):
        await Kubectl(server, tmp_path)("apply", "-f", str(EXAMPLE))
        await client.create(NAMESPACES, {"metadata": {"name": "other"}})

        async def is_enforced() -> bool:
            """The server takes some time until it evaluates a new policy."""
            try:
                body = job(f"probe-{asyncio.get_running_loop().time()}".replace(".", "-"), "team-b")
                await client.create(JOBS, body, namespace="team-a")
            except (ForbiddenError, InvalidError) as error:
                assert "may only use the queue team-a" in str(error)
                return True
            return False

        await wait_until_true(is_enforced)
        await client.create(JOBS, job("own", "team-a"), namespace="team-a")
        await client.create(JOBS, job("free", "team-b"), namespace="other")
