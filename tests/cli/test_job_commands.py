"""The commands for jobs on a cluster in the process of the test."""

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.shell import Shell
from typer.testing import CliRunner

from batholith.cli.jobs.connection import complete_jobs
from batholith.cli.jobs.listing import watch_jobs
from batholith.cli.main import app
from batholith.client import Job

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

BATCH_JOB: dict[str, Any] = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {
        "suspend": True,
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "busybox", "command": ["true"]}],
            }
        },
    },
}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the list of the server, which follows the cluster, has a state."""
    while not await condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def explained(shell: Shell, job: str, text: str) -> None:
    """Wait until `why` prints a text: the outcome of a command is recorded after its effect."""

    async def is_printed() -> bool:
        return text in await shell.out("why", job)

    await until(is_printed)


async def test_jobs_of_all_kinds_are_listed_and_filtered(shell: Shell) -> None:
    await shell.running("train")
    await shell.submit(BATCH_JOB)

    async def both() -> bool:
        return len((await shell.out("jobs", "-o", "name")).splitlines()) == 2

    await until(both)
    assert (await shell.out("jobs", "-o", "name")).split() == ["jobs/train", "batchjobs/train"]
    assert (await shell.out("jobs", "-l", "team=vision", "-o", "name")).split() == ["jobs/train"]
    assert await shell.out("jobs", "--kind", "batchjobs", "-o", "name") == "batchjobs/train\n"
    assert await shell.out("jobs", "--phase", "Failed", "-o", "name") == ""
    assert await shell.out("jobs", "--user", "absent", "-o", "name") == ""
    assert await shell.out("jobs", "--queue", "other", "-o", "name") == ""
    row = (await shell.out("jobs", "--kind", "jobs")).splitlines()[1].split()
    assert row[:5] == ["train", "jobs", "default", "Running", "2/2"]
    (item,) = json.loads(await shell.out("jobs", "--kind", "jobs", "-o", "json"))
    assert (item["name"], item["phase"]) == ("train", "Running")
    assert shell.namespace in await shell.out("jobs", "-A")


async def test_a_name_of_several_kinds_is_refused_until_the_kind_is_given(shell: Shell) -> None:
    await shell.running("train")
    await shell.submit(BATCH_JOB)
    result = await shell.run("cancel", "train")
    assert result.exit_code == 2
    assert "write jobs/train or batchjobs/train" in result.stderr
    assert await shell.out("wait", "jobs/train", "--for", "Running") == "jobs/train: Running\n"


async def test_a_job_that_has_not_started_is_held_and_released(shell: Shell) -> None:
    await shell.submit(Job("big").task("main", image="busybox", cpu=100000))
    assert await shell.out("hold", "big", "--wait", "60") == "jobs/big: Aborted\n"
    refused = await shell.run("hold", "big")
    assert (refused.exit_code, "only a job that has not started" in refused.stderr) == (1, True)
    assert (await shell.out("release", "big")).startswith("jobs/big: ")

    async def waits_again() -> bool:
        return (await shell.out("jobs", "--phase", "Pending", "-o", "name")) == "jobs/big\n"

    await until(waits_again)
    await shell.running("train")
    refused = await shell.run("hold", "train")
    assert (refused.exit_code, "batholith suspend" in refused.stderr) == (1, True)


async def test_a_job_is_suspended_resumed_restarted_and_cancelled(shell: Shell) -> None:
    await shell.running("train")
    assert await shell.out("suspend", "train", "--wait", "60") == "jobs/train: Aborted\n"
    user = (await asyncio.to_thread(shell.client.jobs.get, "train")).info.user
    await explained(shell, "train", f"the job was suspended by {user}; it starts again")
    assert "jobs/train: " in await shell.out("resume", "train", "--wait", "60")
    assert await shell.out("wait", "train", "--for", "Running") == "jobs/train: Running\n"
    assert "jobs/train: " in await shell.out("restart", "train", "--task", "worker")
    assert await shell.out("cancel", "train", "--wait", "60") == "jobs/train: Terminated\n"
    await explained(shell, "train", f"the job was terminated by {user}")
    result = await shell.run("resume", "train")
    assert result.exit_code == 1
    assert "it is possible in phase" in result.stderr
    result = await shell.run("wait", "train")
    assert (result.exit_code, "Terminated" in result.stderr) == (1, True)
    assert await shell.out("cancel", "--delete", "train") == "jobs/train: deleted\n"


async def test_an_error_of_one_job_does_not_prevent_the_others(shell: Shell) -> None:
    await shell.running("train")
    result = await shell.run("suspend", "absent", "train", "--wait", "60")
    assert result.exit_code == 4
    assert result.stdout == "jobs/train: Aborted\n"
    assert "no job 'absent' in namespace" in result.stderr


async def test_a_kind_that_cannot_be_ended_is_deleted_only_if_asked_for(shell: Shell) -> None:
    await shell.submit(BATCH_JOB)
    result = await shell.run("cancel", "train")
    assert (result.exit_code, "--delete" in result.stderr) == (1, True)
    await asyncio.to_thread(shell.client.jobs.of_kind("batchjobs").get, "train")
    assert await shell.out("cancel", "train", "--delete") == "batchjobs/train: deleted\n"


async def test_a_job_is_shown_with_its_pods_and_its_reason(shell: Shell) -> None:
    await shell.running("train")
    text = await shell.out("job", "train")
    assert "Phase:     Running" in text
    assert "train-worker-0  worker  Running" in text
    found = json.loads(await shell.out("job", "train", "-o", "json"))
    assert [each["task"] for each in found["pods"]] == ["helper", "worker"]
    await shell.submit(Job("big").task("main", image="busybox", cpu=100000))

    async def ranked() -> bool:
        # Jobs of other tests may wait, too.
        return bool(re.search(r"position (\d) of \1", await shell.out("why", "big")))

    await until(ranked)
    assert "100k" in await shell.out("why", "big") or "100000" in await shell.out("why", "big")

    async def listed() -> bool:
        listing = await shell.out("jobs", "--phase", "Pending", "-o", "wide")
        return bool(re.search(r"\b(\d)/\1\b", listing))

    await until(listed)


async def test_errors_are_one_sentence_with_an_exit_code(
    shell: Shell, tmp_path: Path, unused_tcp_port: int
) -> None:
    missing = await shell.run("queue", "absent")
    assert (missing.exit_code, missing.stderr.count("\n")) == (4, 1)
    unknown = await shell.run("job", "nokind/train")
    assert (unknown.exit_code, "is no kind of jobs" in unknown.stderr) == (2, True)
    passed = await shell.run("wait", "absent", "--timeout", "1")
    assert passed.exit_code == 4
    await shell.running("train")
    assert (await shell.run("wait", "train", "--timeout", "0.1")).exit_code == 124
    both = await shell.run("logs", "train", "--all", "--task", "worker")
    assert both.exit_code == 2
    wrong = tmp_path / "wrong"
    wrong.write_text("not-a-token")
    wrong.chmod(0o600)
    rejected = await shell.run("jobs", "--token-file", str(wrong))
    # The fixture appends its own token file, and the last option wins.
    assert rejected.exit_code == 0
    given = ["jobs", "--url", shell.rest.url, "--token-file", str(wrong)]
    assert (await asyncio.to_thread(CliRunner().invoke, app, given)).exit_code == 5
    given[2] = f"http://127.0.0.1:{unused_tcp_port}"
    refused = await asyncio.to_thread(CliRunner().invoke, app, given)
    assert refused.exit_code == 3
    assert "batholith status" in refused.stderr
    assert "Errno" not in refused.stderr


async def test_changes_of_all_kinds_are_watched(shell: Shell) -> None:
    await shell.submit(BATCH_JOB)
    seen: list[tuple[str, str]] = []
    complete = threading.Event()

    def watch() -> None:
        for _, job in watch_jobs(shell.client, ["jobs", "batchjobs"]):
            seen.append((job.kind, job.name))
            if {kind for kind, _ in seen} == {"jobs", "batchjobs"}:
                complete.set()
                return

    task = asyncio.create_task(asyncio.to_thread(watch))
    await shell.running("other")
    await task
    assert complete.is_set()
    assert {*seen} == {("jobs", "other"), ("batchjobs", "train")}
    refused = await shell.run("jobs", "--watch", "-o", "csv")
    assert (refused.exit_code, "--watch" in refused.stderr) == (2, True)


async def test_names_of_jobs_are_completed(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await shell.running("train")
    token = tmp_path / "token"

    class Context:
        params: dict[str, Any] = {
            "url": shell.rest.url,
            "token_file": token,
            "namespace": shell.namespace,
        }

    def complete(prefix: str) -> list[str]:
        return complete_jobs(Context(), prefix)  # type: ignore[arg-type]

    async def known() -> bool:
        return await asyncio.to_thread(complete, "tr") == ["train"]

    await until(known)
    assert await asyncio.to_thread(complete, "x") == []
    await shell.submit({**BATCH_JOB, "metadata": {"name": "try"}})

    async def has_both() -> bool:
        return await asyncio.to_thread(complete, "tr") == ["train", "try"]

    await until(has_both)
    assert await asyncio.to_thread(complete, "batchjobs/t") == ["batchjobs/try"]
    assert await asyncio.to_thread(complete, "nokind/t") == []
    Context.params["url"] = "no url"
    assert await asyncio.to_thread(complete, "tr") == []


async def test_the_history_has_deleted_jobs(shell: Shell) -> None:
    await shell.running("train")
    await shell.out("cancel", "--delete", "train")

    async def recorded() -> bool:
        return "train" in await shell.out("history", "train", "--since", "1h")

    await until(recorded)
    header = (await shell.out("history", "-o", "csv")).splitlines()[0]
    assert header.startswith("name,kind,queue,user,phase,exit,age,run,account,exits,cpu seconds")
    bad = await shell.run("history", "--since", "soon")
    assert (bad.exit_code, "--since" in bad.stderr) == (2, True)


async def test_the_history_has_exit_codes_and_usage_and_the_columns_that_are_asked_for(
    shell: Shell,
) -> None:
    failing = Job("train").task("main", image="busybox", cpu=1, command=["sh", "-c", "exit 3"])
    await shell.submit(failing)
    await shell.run("wait", "train")

    async def recorded() -> bool:
        records = json.loads(await shell.out("history", "train", "-o", "json"))
        return [(each["phase"], each["exit_codes"]) for each in records] == [("Failed", {"3": 1})]

    await until(recorded)
    columns = "JobName%6,state%-8,ExitCode,CPUTimeRAW,End"
    line = (await shell.out("history", "train", "--format", columns)).splitlines()[1]
    (record,) = json.loads(await shell.out("history", "train", "-o", "json"))
    seconds = round(record["resource_seconds"].get("cpu", 0.0), 1)
    assert line.startswith(f" train  Failed    3         {seconds:<10}  20")
    totals = json.loads(await shell.out("usage", "--by", "namespace", "-o", "json"))["series"]
    used = [each for each in totals if each["name"] == shell.namespace]
    points = [point["resource_seconds"] for each in used for point in each["points"]]
    assert sum(each["cpu"] for each in points) == record["resource_seconds"].get("cpu", 0)
    wrong = await shell.run("history", "--format", "JobID,Nonsense")
    assert (wrong.exit_code, "'Nonsense' is no field" in wrong.stderr) == (2, True)
    wrong = await shell.run("history", "--format", "Name%0")
    assert (wrong.exit_code, "the width is 1 to" in wrong.stderr) == (2, True)
    wrong = await shell.run("history", "--format", "Name", "-o", "json")
    assert (wrong.exit_code, "leave out one" in wrong.stderr) == (2, True)


async def test_queues_are_listed_and_shown(shell: Shell) -> None:
    assert "queues/default" in (await shell.out("queues", "-o", "name")).split()
    assert "State:" in await shell.out("queue", "default")
    assert (
        json.loads(await shell.out("queue", "default", "-o", "json"))["usage"]["name"] == "default"
    )
