"""What a hostile container can win, at each level of isolation, as root and as a normal user."""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import support_escapes

from batholith.cluster.agent import layout, runner, shim
from batholith.cluster.agent.ids import SHARED, Ids
from batholith.cluster.agent.runner import TOOLS, Launch, Level, RunFolder

UNPRIVILEGED = 54321
"""A user that owns nothing on the machine."""

PROGRAM = Path(support_escapes.__file__)


@pytest.fixture(params=["root", "user"])
def user(request: pytest.FixtureRequest) -> int:
    """Who runs the agent; a normal user tries only what a normal user can."""
    if request.param == "root" and os.geteuid():
        pytest.skip("only root can try what root's pods can do")
    return 0 if request.param == "root" else os.geteuid() or UNPRIVILEGED


def python() -> str:
    """An interpreter that every user of the machine may run."""
    found = shutil.which("python3", path="/usr/local/bin:/usr/bin")
    if found is None:
        pytest.skip("no python3 that all users may run")
    return found


@pytest.fixture
def data(user: int) -> Iterator[Path]:
    """A data folder with a secret, where the layout shows its surroundings: not in /tmp."""
    places = [
        place for place in ("/srv", "/opt", os.path.expanduser("~")) if os.access(place, os.W_OK)
    ]
    made = Path(tempfile.mkdtemp(prefix="batholith-escapes-", dir=places[0]))
    (made / "tokens.json").write_text(secrets.token_hex())
    try:
        yield made
    finally:
        shutil.rmtree(made)


def prepared(data: Path, level: Level, program: str, user: int) -> RunFolder:
    folder = RunFolder(data / "pods" / "uid" / "containers" / "c" / "0")
    where = {"DATA": str(data), "SECRET": "1", "PID": str(os.getpid()), "KEY": "batholith-test"}
    with seen_by(user):
        steps = layout.plan([], hidden=[str(data)], home="/nobody", tools=() if user else TOOLS)
    folder.prepare(
        Launch(
            argv=[program, "-I", "-S", str(PROGRAM)],
            env={"PATH": os.defpath, **where},
            cwd="/",
            log=data / "logs" / "0.log",
            hostname="some-pod",
            level=level,
            ids=Ids(None if user else SHARED),
            steps=steps,
        )
    )
    return folder


def own(place: Path, user: int) -> None:
    """Give all of a folder to *user*."""
    for path in (place, *place.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)


@contextlib.contextmanager
def seen_by(user: int) -> Iterator[None]:
    """See the machine's files as *user* does."""
    before = os.geteuid()
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(before)


async def end_of(folder: RunFolder, user: int, program: str) -> runner.Ended:
    """Run it to its end, its shim as *user*."""
    shell = await asyncio.create_subprocess_exec(
        program, "-I", "-S", str(Path(shim.__file__).with_name("starting.py")), str(folder.path),
        user=user, group=user, extra_groups=[], start_new_session=True,
    )  # fmt: skip
    await shell.wait()
    ended = folder.ended()
    assert ended is not None
    return ended


@pytest.fixture(params=[Level.BUBBLEWRAP, Level.UNSHARE])
def level(request: pytest.FixtureRequest) -> Level:
    wanted: Level = request.param
    found = runner.probe(wanted)
    if found.level is not wanted:
        pytest.skip("; ".join(found.reasons))
    return wanted


async def test_nothing_is_won_in_a_sandbox(
    data: Path, level: Level, user: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = python()
    monkeypatch.setattr(sys, "executable", program)
    host = socket.gethostname()
    folder = prepared(data, level, program, user)
    own(data, user)
    ended = await end_of(folder, user, program)
    log = (data / "logs" / "0.log").read_text()
    assert ended.code == 0, (ended, log)
    won = json.loads(log.splitlines()[-1].split(" ", 3)[3])
    assert len(won) >= 20
    assert {name: what for name, what in won.items() if what} == {}
    assert socket.gethostname() == host
