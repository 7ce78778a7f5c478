"""``simulate`` and ``submit --test-only``, with a scheduler that returns what a test wants."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from support.shell import Shell
from support.simulations import Simulate, leading

from batholith.model.job import Job
from batholith.model.names import JOBS
from batholith.model.scheduler_questions import JobRef, NodeReservation, Reservations, ReservedNode
from batholith.model.simulation import Forecast, NodePods, SimulationResult, TriedChange

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

WAITS = SimulationResult(
    starts_now=False,
    forecast=Forecast(start=60.0, basis="limit"),
    changes=(
        TriedChange("pods", starts_now=False, pods=1),
        TriedChange("queue", starts_now=True, queue="other"),
    ),
    is_complete=False,
)
SLEEP = ("--image", "busybox", "--ntasks=3", "--", "sleep", "600")


@asynccontextmanager
async def simulating(shell: Shell, simulate: Simulate) -> AsyncIterator[None]:
    async with shell.rest.cluster.client() as client, leading(client, simulate):
        yield


async def test_nodes_of_a_job_that_would_start_are_listed_and_nothing_is_created(
    shell: Shell, tmp_path: Path
) -> None:
    asked: list[Job] = []

    async def simulate(job: Job) -> SimulationResult:
        asked.append(job)
        return SimulationResult(starts_now=True, nodes=(NodePods("a", 2), NodePods("b", 1)))

    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n#SBATCH --array=1-9%3 --begin=2999-01-31\necho $1\n")
    async with simulating(shell, simulate):
        out = await shell.out_of_program("simulate", *SLEEP)
        tested = await shell.out_of_program("submit", "--test-only", *SLEEP)
        later = await shell.out_of_program("simulate", "--image", "busybox", str(script), "5")
    assert out == (
        "Result: it would start now: 3 pods on 2 nodes\n"
        "Start:  now\n"
        "Next:   submit it\n"
        "\n"
        "NODE  PODS\n"
        "a     2\n"
        "b     1\n"
    )
    assert tested == out
    assert "Result: after its begin at 2999-01-31T" in later
    assert "Start:  when that is met\n" in later
    assert [sum(task.replicas for task in job.spec.tasks) for job in asked] == [3, 3, 9]
    assert await shell.out("jobs", "-o", "name") == ""


async def test_a_job_that_would_wait_has_its_start_and_what_would_change_it(shell: Shell) -> None:
    async def simulate(_: Job) -> SimulationResult:
        return WAITS

    async with simulating(shell, simulate):
        out = await shell.out_of_program("simulate", *SLEEP)
        found = json.loads(await shell.out_of_program("simulate", "-o", "json", *SLEEP))
        described = await shell.out_of_program("submit", "--test-only", "-o", "yaml", *SLEEP)
    assert "Start:  expected 1970-01-01 " in out
    assert " (by limit)\nNext:   it would start now in queue other\n" in out
    assert out.endswith(
        "Changes that were tried:\n"
        "  it would wait, too, with 1 pod instead of 3\n"
        "  it would start now in queue other\n"
        "  There was no time for others.\n"
    )
    assert (found["starts_now"], found["start_basis"], len(found["changes"])) == (False, "limit", 2)
    assert yaml.safe_load(described) == found


async def test_a_job_that_can_never_start_is_a_failure(shell: Shell) -> None:
    async def simulate(_: Job) -> SimulationResult:
        return SimulationResult(starts_now=False, impossible=True)

    async with simulating(shell, simulate):
        for command in (("simulate",), ("submit", "--test-only")):
            result = await shell.run_program(*command, *SLEEP)
            assert result.exit_code == 1, command
            assert "Start:  never, also if nothing else ran\n" in result.stdout


async def test_a_manifest_is_simulated(shell: Shell, tmp_path: Path) -> None:
    asked: list[Job] = []

    async def simulate(job: Job) -> SimulationResult:
        asked.append(job)
        return SimulationResult(starts_now=True, nodes=(NodePods("a", 3),))

    job = yaml.safe_load(await shell.out_of_program("submit", "--dry-run", *SLEEP))
    job["metadata"]["name"] = "from-file"
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    async with simulating(shell, simulate):
        assert "3 pods on 1 node" in await shell.out("simulate", "--file", str(path))
        assert (asked[0].metadata.name, asked[0].metadata.namespace) == (
            "from-file",
            shell.namespace,
        )
        path.write_text("kind: Pod\n")
        rejected = await shell.run("simulate", "-f", str(path))
        assert (rejected.exit_code, "only a Job of Volcano" in rejected.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "content", "text"),
    [
        (("-f", "FILE", "--mem=1G"), "kind: Job", "--file has the whole job: leave out --mem"),
        (("-f", "FILE", "--", "true"), "kind: Job", "leave out a script, a command or --wrap"),
        (("-f", "FILE"), "a: 1\n---\nb: 2\n", "does not contain one object, but 2"),
        (("-f", "FILE"), "[", "is not YAML"),
        (("-f", "absent.yaml"), "", "cannot read absent.yaml: No such file"),
        (("--image", "x", "--mem=lots", "--", "true"), "", "--mem"),
        ((), "", "the script is empty"),
    ],
)
async def test_wrong_arguments_are_named(
    shell: Shell, tmp_path: Path, arguments: tuple[str, ...], content: str, text: str
) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(content)
    given = [str(path) if each == "FILE" else each for each in arguments]
    result = await shell.run_program("simulate", *given)
    assert result.exit_code == 2, result.output
    assert text in result.stderr


async def test_tests_exclude_creation(shell: Shell) -> None:
    for other in ("--wait", "--dry-run"):
        result = await shell.run_program("submit", "--test-only", other, *SLEEP)
        assert (result.exit_code, result.stderr) == (
            2,
            f"batholith: {other}: --test-only excludes it\n",
        )


async def test_reservations_are_listed(shell: Shell) -> None:
    job = JobRef("default", JOBS.api_version, JOBS.kind, "train")
    nodes = (ReservedNode("n1", {"cpu": "2"}), ReservedNode("n2", {"cpu": "1"}))
    reserved = Reservations(
        items=(
            NodeReservation(job, "research", "kept", nodes[:1]),
            NodeReservation(job, "research", "start", nodes, start=60.0),
        ),
        is_complete=False,
    )
    async with shell.rest.cluster.client() as client, leading(client, reservations=reserved):
        result = await shell.run("reservations")
        names = await shell.out("reservations", "-o", "name")
        (first, second) = json.loads(await shell.out("reservations", "-o", "json"))
        wide = await shell.out("reservations", "-o", "wide")
    assert result.exit_code == 0, result.output
    assert result.stderr == "batholith: more is reserved than is shown\n"
    header, kept, planned = result.stdout.splitlines()
    assert header.split() == ["JOB", "NODES", "PURPOSE", "START", "UNTIL"]
    assert kept.startswith("default/train  1      pods of it that ran there are created again")
    assert planned.startswith("default/train  2      its start is planned ")
    assert names == "default/train\n" * 2
    assert (first["start"], second["start"]) == (None, "1970-01-01T00:01:00Z")
    assert "n1: 2 cpu; n2: 1 cpu" in wide
