"""What a hostile container can win, at each level of isolation, as root and as a normal user."""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import escapes
from support.polling import wait_for

from batholith.agent.pods.handlers import _sandbox_pid as inside
from batholith.agent.runtime import nsenter, rootfs, runs, shim
from batholith.agent.runtime.ids import SHARED, Ids
from batholith.agent.runtime.runs import IsolationLevel, LaunchSpec, RunDir

UNPRIVILEGED = 54321
"""A user that owns nothing on the machine."""

PROGRAM = Path(escapes.__file__)
KEY = "batholith-test"
BASIC_GUARANTEES = frozenset(
    {
        "core_pattern_is_written", "system_requests_are_made", "other_controls_in_proc_are_written",
        "the_machine_s_passwords_are_read", "its_private_keys_are_read",
        "the_machine_s_files_are_written", "a_disk_is_opened", "a_kernel_module_is_loaded",
        "the_clock_is_set", "a_file_is_opened_by_its_number", "a_control_group_runs_a_program",
        "the_kernel_s_objects_are_written", "a_descriptor_was_left_open", "rights_are_regained",
        "a_key_of_the_session_is_read", "the_host_name_is_changed",
    }
)  # fmt: skip
"""What a normal user's pod cannot do without a sandbox, either."""


@pytest.fixture(params=["root", "root without user namespaces", "user"])
def who(request: pytest.FixtureRequest) -> str:
    """Who runs the agent, on which machine."""
    if request.param != "user" and os.geteuid():
        pytest.skip("only root can try what root's pods can do")
    return str(request.param)


@pytest.fixture
def user(who: str) -> int:
    """The agent's user id."""
    return 0 if who != "user" else os.geteuid() or UNPRIVILEGED


@pytest.fixture
def ids(who: str) -> Ids:
    """What such an agent gives its pods."""
    return Ids() if who == "user" else Ids(SHARED, namespace=who == "root")


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


@contextlib.contextmanager
def seen_by(user: int) -> Iterator[None]:
    """See the machine's files as *user* does."""
    before = os.geteuid()
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(before)


@dataclass(frozen=True, kw_only=True)
class ContainerCase:
    """An agent that is about to run one container."""

    data: Path
    level: IsolationLevel
    user: int
    ids: Ids
    program: str

    def prepare(self, *argv: str, run_as: int = 0) -> RunDir:
        """The container as the agent prepares it."""
        data, folder = self.data, RunDir(self.data / "pods" / "uid" / "containers" / "c" / "0")
        with seen_by(self.user):
            tools = () if self.ids.base is None else runs.PYTHON_PREFIXES
            steps = rootfs.mount_plan([], hidden=[str(data)], home="/nobody", tools=tools)
        told = {"DATA": str(data), "SECRET": "1", "PID": str(os.getpid()), "KEY": KEY}
        folder.prepare(
            LaunchSpec(
                argv=argv,
                env={"PATH": os.defpath, **told},
                cwd="/",
                log=data / "logs" / "0.log",
                hostname="some-pod",
                isolation=self.level,
                user=(run_as, run_as),
                ids=self.ids,
                steps=steps,
            )
        )
        own(data, self.user)
        return folder

    async def start(self, script: Path, *arguments: str, **more: Any) -> asyncio.subprocess.Process:
        """One of the programs of the agent, as its user."""
        return await asyncio.create_subprocess_exec(
            self.program, "-I", "-S", str(script), *arguments,
            user=self.user, group=self.user, extra_groups=[], start_new_session=True,
            env={runs.RUN_VARIABLE: "uid/containers/c/0", "PATH": os.defpath}, **more,
        )  # fmt: skip

    def breaches(self, text: str) -> dict[str, str]:
        """What was won, of what the level promises."""
        found: dict[str, str] = json.loads(text)
        assert len(found) >= 20
        return {
            name: what
            for name, what in found.items()
            if what and (self.level is not IsolationLevel.PLAIN or name in BASIC_GUARANTEES)
        }


def own(place: Path, user: int) -> None:
    """Give all of a folder to *user*."""
    for path in (place, *place.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)


SHIM = Path(shim.__file__).with_name("starting.py")


@pytest.fixture(params=list(IsolationLevel))
def case(
    request: pytest.FixtureRequest, data: Path, user: int, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> ContainerCase:
    """Each level, where it applies."""
    level: IsolationLevel = request.param
    if level is IsolationLevel.PLAIN and user == 0:
        pytest.skip("in plain mode root's pods are root, which is said wherever it matters")
    if level is IsolationLevel.BUBBLEWRAP:
        require_bubblewrap()
    monkeypatch.setattr(sys, "executable", python())
    return ContainerCase(data=data, level=level, user=user, ids=ids, program=python())


def require_bubblewrap() -> None:
    """Skip without bubblewrap; fail instead where ``BATHOLITH_REQUIRE`` demands it."""
    if shutil.which("bwrap") is None:
        if "bubblewrap" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
            pytest.fail("bubblewrap is required")
        pytest.skip("bubblewrap is not installed")


@pytest.mark.parametrize("run_as", [0, 1000])
async def test_a_container_wins_nothing(case: ContainerCase, run_as: int) -> None:
    host = socket.gethostname()
    folder = case.prepare(case.program, "-I", "-S", str(PROGRAM), run_as=run_as)
    await (await case.start(SHIM, str(folder.path))).wait()
    ended = folder.exit_record()
    log = (case.data / "logs" / "0.log").read_text()
    assert ended is not None
    assert ended.code == 0, (ended, log)
    assert case.breaches(log.splitlines()[-1].split(" ", 3)[3]) == {}
    assert socket.gethostname() == host


async def test_a_hook_wins_nothing(case: ContainerCase) -> None:
    folder = case.prepare("sleep", "60")
    started = await case.start(SHIM, str(folder.path))
    await wait_for(lambda: folder.read_claim())
    launch = json.loads((folder.path / shim.LAUNCH).read_text())
    plain = case.level is IsolationLevel.PLAIN
    wanted = {
        "argv": [case.program, "-I", "-S", str(PROGRAM)],
        **{key: launch[key] for key in ("env", "cwd", "ids")},
        "pid": 0 if plain else await inside(folder, case.level, ids=launch["ids"]),
    }
    pipe = asyncio.subprocess.PIPE
    hook = await case.start(Path(nsenter.__file__), stdin=pipe, stdout=pipe, stderr=pipe)
    out, err = await hook.communicate(json.dumps(wanted).encode())
    assert hook.returncode == 0, err
    assert case.breaches(out.decode().splitlines()[-1]) == {}
    started.send_signal(signal.SIGUSR1)
    await started.wait()


async def test_no_process_of_a_container_outlives_its_shim(case: ContainerCase) -> None:
    """Even one that wiped its environment, by which it could have been found."""
    if case.level is IsolationLevel.PLAIN:
        pytest.skip("without a sandbox what hides is not found")
    seconds = f"60.{secrets.randbits(48)}"
    folder = case.prepare("env", "-i", "/bin/sleep", seconds)
    started = await case.start(SHIM, str(folder.path))

    def alive() -> bool:
        lines = Path("/proc").glob("[0-9]*/cmdline")
        return any(seconds.encode() in read(line) for line in lines)

    await wait_for(alive)
    started.kill()
    await started.wait()
    if case.user == 0:
        runs.kill_tagged(folder.name)  # as root's agent does; a user's cannot look into all of them
    await wait_for(lambda: not alive())


def read(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""
