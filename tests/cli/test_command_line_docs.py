"""The pages of the command line, executed on a cluster that was started as users start it."""

import asyncio
import itertools
import json
import os
import re
import sys
from pathlib import Path

import pytest
from support.embedded_cluster import batholith, embedded_cluster, run

from batholith.cli.command_table import TABLE, Kind
from batholith.cli.submit.option_table import SUPPORTED
from batholith.client import Client, Job

pytestmark = [pytest.mark.process, pytest.mark.timeout(1500)]

DOCS = Path(__file__).parents[2] / "docs"
PAGE, SUBMIT_PAGE, NOTIFY_PAGE = (
    (DOCS / f"{name}.md").read_text() for name in ("command-line", "submit", "notifications")
)
README = (DOCS.parent / "README.md").read_text().partition("## Your own script")[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = BLOCK.findall(f"{NOTIFY_PAGE}\n{PAGE}\n{SUBMIT_PAGE}")
PTY = re.findall(r"^batholith run --pty .*", SUBMIT_PAGE, re.MULTILINE)
OWN_SCRIPT = [
    line
    for line in BLOCK.findall(README)[0].splitlines()
    if not re.match(r"pip |batholith (up|down)", line)  # there is a cluster
]


def test_the_pages_show_each_command() -> None:
    shown = set(re.findall(r"^(?:\w+=\$\()?batholith (\w+)", "\n".join(BLOCKS), re.MULTILINE))
    assert len(OWN_SCRIPT) == 3
    commands = {row.name for row in TABLE if row.kind in (Kind.JOBS, Kind.PROGRAM)}
    assert commands - {"mcp"} <= shown  # which programs run, and its own tests


def test_the_page_of_submit_lists_each_option() -> None:
    listed = set(re.findall(r"`--([a-z-]+)", SUBMIT_PAGE))
    assert {each.name for each in SUPPORTED} <= listed


async def test_the_commands_of_the_pages_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    # The command of this environment, not another one in the caller's PATH.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (tmp_path / "data").mkdir()
    root = tmp_path / "data" / "batholith"
    assert (await batholith("jobs")).code == 3
    work = _working_directory(tmp_path)
    monkeypatch.setenv("PATH", f"{work}:{os.environ['PATH']}")
    options = ("--mount", f"{work}:ro", "--notify-allow", "localhost")
    async with embedded_cluster(root, *options) as cluster:
        await asyncio.to_thread(_submit)
        script = "\n".join(["set -ex", f"cd {work}", *OWN_SCRIPT, *BLOCKS])
        result = await run("bash", "-c", script)
        assert result.code == 0, result.out + result.err
        assert "hello from hello.sh\n" in result.out
        assert "hello from worker" in result.out
        assert "jobs/train: Aborted" in result.out
        assert "jobs/hello: Completed" in result.out
        assert "square: the square of 12 is 144 on 2 CPUs" in result.out
        assert "square: the square of 5 is 25 on 2 CPUs" in result.out
        assert all(f"task {rank} of 3" in result.out for rank in range(3))
        for rate, seed in itertools.product(("0.1", "0.01"), (1, 2, 3)):
            assert f"train --lr {rate} --seed {seed}" in result.out
        assert "hello from a pod\n" in result.out
        assert result.out.count("Result: it would start now: 1 pod on 1 node\n") == 2
        assert "Start:  never, also if nothing else ran\n" in result.out
        assert re.search(r"jobs/wrap-\d+: Completed", result.out)
        assert re.search(r"jobs/later-\d+: Terminated", result.out)
        assert all(f"member {index} of 5" in result.out for index in (1, 3, 5, 7, 9))
        assert "notified of end: train is ready\n" in result.out + result.err
        assert "notify-send: job ended\n" in result.out + result.err
        (shown,) = PTY
        refused = await run("bash", "-c", f"cd {work}; {shown}")
        assert "--pty: input and output are no terminal here" in refused.err
        described = await batholith("status", "--json")
        assert json.loads(described.out)["rest_url"] == cluster.rest
    assert (await batholith("jobs")).code == 3


def _working_directory(tmp_path: Path) -> Path:
    """A directory with the files that the pages name."""
    work = tmp_path / "work"
    work.mkdir(mode=0o755)
    (work / "train.sh").write_text("#!/bin/sh\necho trained\n")
    (work / "train.py").write_text("print(42)\n")
    for name, text in (
        ("notify.sh", "echo notified of $BATHOLITH_EVENT: train is ready"),
        ("notify-send", 'echo "notify-send: $1"'),
    ):
        (work / name).write_text(f"#!/bin/sh\n{text}\n")
        (work / name).chmod(0o755)
    return work


def _submit() -> None:
    with Client() as client:
        worker = ["sh", "-c", "echo hello from worker; sleep 3600"]
        train = Job("train", labels={"team": "vision"})
        client.jobs.submit(
            train.task("worker", image="busybox", replicas=2, command=worker, cpu=0.1)
        ).wait("Running", timeout=120)
        client.jobs.submit(Job("train-1").task("main", image="busybox", command=["true"]))
        client.jobs.submit(Job("hello").task("main", image="busybox", command=["echo", "done"]))


async def test_the_status_of_a_cluster_that_is_down_is_json_too(tmp_path: Path) -> None:
    found = await batholith("status", "--json", "--data-dir", str(tmp_path))
    assert found.code == 3
    assert json.loads(found.out) == {"state": "down", "data_dir": str(tmp_path)}
