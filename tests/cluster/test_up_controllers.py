"""``up`` with another operator, and changes of the definitions that it installs."""

import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support import embedded_cluster
from support.embedded_cluster import EmbeddedCluster, batholith

from batholith.model.names import CRDS

TRAINING, JOBS = "pytorchjobs.kubeflow.org", "jobs.batch.volcano.sh"
SIMULATED = ("--simulate", "1")


async def add_short_name(cluster: EmbeddedCluster, name: str) -> list[str]:
    """Change a definition as ``kubectl apply`` of another one does; return the warnings."""
    server = f"https://127.0.0.1:{cluster.state.ports['kubernetes']}"
    headers = {
        "Authorization": f"Bearer {cluster.token}",
        "Content-Type": "application/merge-patch+json",
    }
    body = b'{"spec": {"names": {"shortNames": ["changed"]}}}'
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.patch(f"{server}{CRDS.path()}/{name}", data=body, ssl=False) as response,
    ):
        assert response.status == 200
        return response.headers.getall("Warning", [])


async def short_names(cluster: EmbeddedCluster, name: str) -> Any:
    definition = await cluster.client.get(CRDS, name, view=dict)
    return definition["spec"]["names"].get("shortNames")


def ran(root: Path) -> set[str]:
    """Names of the controllers that have stopped, by the log."""
    log = (root / "logs" / "controllers.log").read_text()
    return set(re.findall("controller stopped controller=([a-z-]+)", log))


@pytest.mark.process
async def test_the_definitions_of_another_operator_stay_and_those_of_batholith_are_restored(
    tmp_path: Path,
) -> None:
    selection = ("--controllers", "*,-training-controller,-batch-cronjob-controller")
    async with embedded_cluster.embedded_cluster(tmp_path, *SIMULATED, *selection) as cluster:
        assert await add_short_name(cluster, TRAINING) == []
        (warning,) = await add_short_name(cluster, JOBS)
        assert f"'{JOBS}' belongs to Batholith" in warning
    assert ran(tmp_path) & {"job", "pytorchjob-controller"} == {"job"}
    async with embedded_cluster.embedded_cluster(tmp_path, *SIMULATED, *selection) as cluster:
        assert await short_names(cluster, TRAINING) == ["changed"]
        assert await short_names(cluster, JOBS) == ["vcjob", "vj"]
        log = (tmp_path / "logs" / "apiserver.log").read_text()
        assert f"replaced custom resource definition crd={JOBS}" in log
    async with embedded_cluster.embedded_cluster(tmp_path, *SIMULATED) as cluster:
        assert await short_names(cluster, TRAINING) != ["changed"]
    assert "pytorchjob-controller" in ran(tmp_path)


@pytest.mark.process
async def test_an_unknown_controller_is_rejected_before_anything_starts(tmp_path: Path) -> None:
    outcome = await batholith("up", "--data-dir", str(tmp_path / "d"), "--controllers", "*,-kueue")
    assert outcome.code != 0
    assert "unknown controller 'kueue'" in outcome.err
    assert not (tmp_path / "d").exists()
