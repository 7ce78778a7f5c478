"""The examples of the training guide, as users run them: on `batholith up`, by their own programs.

Nothing is simulated: PyTorch's processes meet over gloo, and MPI's ranks are started over ssh.
"""

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.embedded_cluster import EmbeddedCluster, embedded_cluster
from support.embedded_cluster import run as run_command
from support.polling import wait_until_true

from batholith.local.agent.runtime.runs import IsolationLevel, detect_isolation
from batholith.local.agent.state.environment import SEARCH_PATH
from batholith.model.job import Job, JobPhase
from batholith.model.names import CONFIGMAPS, JOBS, PODS, SECRETS, SERVICES, Resource
from batholith.training_ctrl.frameworks import mpi, pytorch

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(500),
]  # a loaded machine takes its time to import PyTorch

Json = dict[str, Any]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
MPIJOBS, PYTORCHJOBS = mpi.FRAMEWORK.kind.resource, pytorch.FRAMEWORK.kind.resource
KINDS = {resource.kind: resource for resource in (CONFIGMAPS, JOBS, MPIJOBS, PYTORCHJOBS, SERVICES)}
ENDED = (JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.ABORTED, JobPhase.TERMINATED)
NO_SANDBOX = "without a sandbox pods cannot look one another up by name"


def interpreters(module: str) -> Iterator[str]:
    """The machine's Pythons that have *module*, as pods look for them."""
    asked = f"import importlib.util as i, sys; sys.exit(i.find_spec({module!r}) is None)"
    for directory in SEARCH_PATH.split(":"):
        found = shutil.which("python3", path=directory)
        if found and subprocess.run([found, "-c", asked]).returncode == 0:
            yield found


def require(what: str, *programs: str, module: str) -> str:
    """A Python that has *module*; skip if something is not there that pods need.

    Fails instead where ``BATHOLITH_REQUIRE`` names *what*.
    """
    python = next(interpreters(module), "")
    problems = [
        f"{program} is not installed"
        for program in programs
        if shutil.which(program, path=SEARCH_PATH) is None
    ]
    problems += [] if python else [f"no python3 has the module {module}"]
    problems += [NO_SANDBOX] if detect_isolation().isolation is IsolationLevel.PLAIN else []
    if problems and what in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
        pytest.fail(f"{what} is required: {'; '.join(problems)}")
    if problems:
        pytest.skip("; ".join(problems))
    return python


async def apply(
    cluster: EmbeddedCluster, example: str, *, python: str, edits: Mapping[str, str] | None = None
) -> None:
    """Apply an example, in which *edits* replace texts."""
    text = (EXAMPLES / example).read_text().replace("python3 ", f"{python} ")
    for old, new in (edits or {}).items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    for body in yaml.safe_load_all(text.replace("python3,", f"{python},")):
        await cluster.client.create(KINDS[body["kind"]], body, namespace="default")


async def logs(cluster: EmbeddedCluster) -> dict[str, str]:
    """Return what the pods that are left have printed."""
    pods = (await cluster.client.list(PODS, namespace="default", view=dict)).items
    names = [pod["metadata"]["name"] for pod in pods]
    return {name: await cluster.log(name) for name in names}


async def run(cluster: EmbeddedCluster, example: str, *, python: str) -> dict[str, str]:
    """Apply an example, and see its job to its end; what the pods that are left have printed."""
    await apply(cluster, example, python=python)
    try:
        async with asyncio.timeout(300):
            phase = await final_phase(cluster)
    except TimeoutError:
        phase = "(still at it)"
    result = await logs(cluster)
    assert phase == JobPhase.COMPLETED, result
    return result


async def final_phase(cluster: EmbeddedCluster) -> str:
    """The last phase of the only job."""
    async for event in cluster.client.watch(JOBS, namespace="default", view=Job):
        phase = event.object.status.state.phase
        if phase in ENDED:
            return phase
    raise AssertionError("the watch ended")


async def test_a_pytorch_job_trains_over_gloo(tmp_path: Path) -> None:
    python = require("torch", module="torch")
    async with embedded_cluster(tmp_path / "data") as cluster:
        result = await run(cluster, "pytorch.yaml", python=python)
    ranks = ("pytorch-master-0", "pytorch-worker-0", "pytorch-worker-1")
    assert result.keys() == set(ranks)
    for rank, name in enumerate(ranks):
        assert f"rank {rank} of 3: y = 3.00 x -1.00" in result[name], result


async def test_an_mpi_job_runs_its_ranks_on_its_workers_over_ssh(tmp_path: Path) -> None:
    python = require("mpi", "mpiexec", "ssh", "sshd", module="mpi4py")
    async with embedded_cluster(tmp_path / "data") as cluster:
        result = await run(cluster, "mpi.yaml", python=python)
    assert "2 ranks, on mpi-worker-0 and mpi-worker-1, add up to 3" in result["mpi-master-0"], (
        result
    )


STEP = "        optimizer.step()\n"
KILL = """\
        if (rank, step, first.item()) == (2, 60, 0):
            os.kill(os.getpid(), 9)
"""
KILLED_AT_STEP_60 = {STEP: STEP + KILL}
"""Only once: after the restart the first step is another one."""


async def test_a_pytorchjob_continues_from_its_checkpoint_after_a_worker_is_killed(
    tmp_path: Path,
) -> None:
    python = require("torch", module="torch")
    async with embedded_cluster(tmp_path / "data") as cluster:
        await apply(cluster, "pytorchjob.yaml", python=python, edits=KILLED_AT_STEP_60)
        await succeeds(cluster, PYTORCHJOBS, "pytorch")
        result = await logs(cluster)
        worker = await cluster.client.get(PODS, "pytorch-worker-1", namespace="default", view=dict)
    ranks = ("pytorch-master-0", "pytorch-worker-0", "pytorch-worker-1")
    assert result.keys() == set(ranks)
    for rank, name in enumerate(ranks):
        assert re.search(rf"rank {rank} of 3 starts at step [1-9]", result[name]), result
        assert f"rank {rank} of 3: y = 3.00 x -1.00" in result[name], result
    assert worker["status"]["containerStatuses"][0]["restartCount"] >= 1


async def test_an_mpijob_runs_its_ranks_on_its_workers_over_ssh(tmp_path: Path) -> None:
    python = require("mpi", "mpiexec", "ssh", "sshd", "ssh-keygen", module="mpi4py")
    key = tmp_path / "id"
    command = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    assert (await run_command(*command)).code == 0
    keys = {path.name: path.read_text() for path in (key, key.with_suffix(".pub"))}
    secret = {"metadata": {"name": "mpi-ssh"}, "stringData": keys}
    async with embedded_cluster(tmp_path / "data") as cluster:
        await cluster.client.create(SECRETS, secret, namespace="default")
        await apply(cluster, "mpijob-ssh.yaml", python=python)
        await succeeds(cluster, MPIJOBS, "mpi")
        result = await logs(cluster)
    assert "2 ranks, on mpi-worker-0 and mpi-worker-1, add up to 3" in result["mpi-launcher"]


async def succeeds(cluster: EmbeddedCluster, resource: Resource, name: str) -> None:
    """Wait until a training job has succeeded."""
    status: Json = {}

    async def has_ended() -> bool:
        job = await cluster.client.get(resource, name, namespace="default", view=dict)
        status.update(job.get("status", {}))
        return status.get("completionTime") is not None

    with contextlib.suppress(TimeoutError):
        await wait_until_true(has_ended, seconds=200)
    states = {each["type"]: each["status"] for each in status.get("conditions", ())}
    assert states.get("Succeeded") == "True", (status, await logs(cluster))
