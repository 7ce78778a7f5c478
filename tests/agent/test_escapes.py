"""Escapes from a container, at each isolation level, for an agent of root and of a normal user."""

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
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import escapes, replaced_programs
from support.polling import wait_for

from batholith.local.agent.pods.handlers import HandlerError
from batholith.local.agent.pods.handlers import sandbox_pid as inside
from batholith.local.agent.runtime import nsenter, rootfs, runs, shim
from batholith.local.agent.runtime.ids import IMAGES, SHARED, Ids
from batholith.local.agent.runtime.image_run import RunImage
from batholith.local.agent.runtime.mounting import ID_RANGE_SIZE
from batholith.local.agent.runtime.runs import IsolationLevel, LaunchSpec, RunDir

# All combinations, as some are skipped: a pair of values may be tested in one of them only.
pytestmark = [pytest.mark.process, pytest.mark.combinations(4)]

UNPRIVILEGED = 54321
"""A user without files on the machine."""

NO_PID = 2**22
"""No process has this id: the kernel permits lower ones only."""

PROGRAM = Path(escapes.__file__)
KEY = "batholith-test"
BASIC_GUARANTEES = frozenset(
    {
        "core_pattern_is_written", "system_requests_are_sent", "other_controls_in_proc_are_written",
        "the_machine_s_passwords_are_read", "its_private_keys_are_read",
        "the_machine_s_files_are_written", "a_disk_is_opened", "a_kernel_module_is_loaded",
        "the_clock_is_set", "a_file_is_opened_by_its_number", "a_control_group_runs_a_program",
        "the_kernel_s_objects_are_written", "a_descriptor_was_left_open", "rights_are_regained",
        "a_key_of_the_session_is_read", "the_host_name_is_changed",
    }
)  # fmt: skip
"""Breaches that a normal user's agent prevents even without a sandbox."""


@pytest.fixture(params=["root", "root without user namespaces", "user"])
def agent_kind(request: pytest.FixtureRequest) -> str:
    """User of the agent, and what its machine permits."""
    if request.param != "user" and os.geteuid():
        pytest.skip("only root can try what root's pods can do")
    return str(request.param)


@pytest.fixture
def user(agent_kind: str) -> int:
    """The agent's user id."""
    return 0 if agent_kind != "user" else os.geteuid() or UNPRIVILEGED


@pytest.fixture
def ids(agent_kind: str) -> Ids:
    """User ids of its pods."""
    return Ids() if agent_kind == "user" else Ids(SHARED, namespace=agent_kind == "root")


def python() -> str:
    """An interpreter that every user of the machine may run."""
    found = shutil.which("python3", path="/usr/local/bin:/usr/bin")
    if found is None:
        pytest.skip("no python3 that all users may run")
    return found


@contextlib.contextmanager
def new_directory() -> Iterator[Path]:
    """Create a directory for the block; not in /tmp, which is hidden anyway."""
    candidates = [
        path for path in ("/srv", "/opt", os.path.expanduser("~")) if os.access(path, os.W_OK)
    ]
    created = Path(tempfile.mkdtemp(prefix="batholith-escapes-", dir=candidates[0]))
    try:
        yield created
    finally:
        shutil.rmtree(created)


@pytest.fixture
def data(user: int) -> Iterator[Path]:
    """A data directory with a secret."""
    with new_directory() as created:
        (created / "tokens.json").write_text(secrets.token_hex())
        yield created


@contextlib.contextmanager
def seen_by(user: int) -> Iterator[None]:
    """Access files as *user* for the block."""
    before = os.geteuid()
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(before)


@dataclass(frozen=True, kw_only=True)
class ContainerAttack:
    """A hostile container at one isolation level."""

    data: Path
    level: IsolationLevel
    user: int
    ids: Ids
    program: str
    image: str = ""
    """``overlay`` or ``copy`` for a container that runs an image."""

    def prepare(
        self,
        *argv: str,
        run_as: int = 0,
        mounts: Sequence[rootfs.Mount] = (),
        tty: bool = False,
    ) -> RunDir:
        """Prepare the run like the agent."""
        data, pod_uid = self.data, str(uuid.uuid4())
        run_dir = RunDir(data / "pods" / pod_uid / "containers" / "c" / "0")
        with seen_by(self.user):
            tools = () if self.ids.base is None else runs.PYTHON_PREFIXES
            steps = rootfs.mount_plan(mounts, hidden=[str(data)], home="/no-home", tools=tools)
        if self.image:
            steps = image_steps(mounts)
        variables = {"DATA": str(data), "SECRET": "1", "PID": str(os.getpid()), "KEY": KEY}
        run_dir.prepare(
            LaunchSpec(
                argv=argv,
                env={"PATH": os.defpath, **variables},
                cwd="/",
                log=data / "logs" / "0.log",
                hostname="some-pod",
                isolation=self.level,
                user=(run_as, run_as),
                ids=self.ids,
                steps=steps,
                image=self.run_image() if self.image else None,
                stdin=tty,
                tty=tty,
            )
        )
        own(data, self.user)
        if self.image and self.ids.base is not None:
            own(data / "layer", IMAGES)
        return run_dir

    def run_image(self) -> RunImage:
        """Return an image of one layer, which has the links of the machine's root directory."""
        layer = self.data / "layer"
        layer.mkdir()
        for entry in os.scandir("/"):
            if entry.is_symlink():
                (layer / entry.name).symlink_to(os.readlink(entry.path))
        return RunImage(
            name="app:1",
            image_id="sha256:1",
            chains=("1",),
            directories=(str(layer),),
            first_id=None if self.ids.base is None else IMAGES,
            overlay=self.image == "overlay",
        )

    async def start(self, script: Path, *arguments: str, **more: Any) -> asyncio.subprocess.Process:
        """Start a program of the agent as its user."""
        if os.geteuid() == 0:
            more |= {"user": self.user, "group": self.user, "extra_groups": []}
        return await asyncio.create_subprocess_exec(
            self.program, "-I", "-S", str(script), *arguments, start_new_session=True,
            env={runs.RUN_VARIABLE: "uid/containers/c/0", "PATH": os.defpath}, **more,
        )  # fmt: skip

    def breaches(self, text: str) -> dict[str, str]:
        """Return the breaches that the level must prevent."""
        found: dict[str, str] = json.loads(text)
        assert len(found) >= 20
        return {
            name: what
            for name, what in found.items()
            if what and (self.level is not IsolationLevel.PLAIN or name in BASIC_GUARANTEES)
        }


def image_steps(mounts: Sequence[rootfs.Mount]) -> list[rootfs.Step]:
    """Return the mounts of a pod whose image needs the machine's programs for the attacks."""
    needed = [rootfs.Mount("/usr", "/usr", read_only=True)]
    needed.append(rootfs.Mount(str(PROGRAM), str(PROGRAM), read_only=True))
    every = sorted([*needed, *mounts], key=lambda mount: mount.target.count("/"))
    return [("ro" if m.read_only else "rw", m.source, m.target, m.sub_path) for m in every]


def own(directory: Path, user: int) -> None:
    """Change the owner of a directory tree."""
    for path in (directory, *directory.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)


SHIM = Path(shim.__file__).with_name("starting.py")


IMAGES_BY = ("overlay", "copy")
"""How the root of a container with an image is built."""


@pytest.fixture(params=[*IsolationLevel, *IMAGES_BY])
def attack(
    request: pytest.FixtureRequest, data: Path, user: int, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> ContainerAttack:
    """Each isolation level that applies, and images."""
    image = request.param if request.param in IMAGES_BY else ""
    level: IsolationLevel = IsolationLevel.UNSHARE if image else request.param
    if image and not ids.namespace:
        pytest.skip("images are run with user namespaces only")
    if level is IsolationLevel.PLAIN and user == 0:
        pytest.skip("without a sandbox the pods of root's agent run as root")
    if level is IsolationLevel.BUBBLEWRAP:
        require_bubblewrap()
        if user == 0:
            pytest.skip("root does not use bubblewrap")
    monkeypatch.setattr(sys, "executable", python())
    return ContainerAttack(
        data=data, level=level, user=user, ids=ids, program=python(), image=image
    )


def require_bubblewrap() -> None:
    """Skip without bubblewrap; fail instead where ``BATHOLITH_REQUIRE`` demands it."""
    if shutil.which("bwrap") is None:
        if "bubblewrap" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
            pytest.fail("bubblewrap is required")
        pytest.skip("bubblewrap is not installed")


@pytest.mark.parametrize(("run_as", "tty"), [(0, False), (1000, False), (0, True)])
async def test_container_cannot_escape(attack: ContainerAttack, run_as: int, tty: bool) -> None:
    host = socket.gethostname()
    run_dir = attack.prepare(attack.program, "-I", "-S", str(PROGRAM), run_as=run_as, tty=tty)
    await (await attack.start(SHIM, str(run_dir.path))).wait()
    ended = run_dir.exit_record()
    log = (attack.data / "logs" / "0.log").read_text()
    assert ended is not None
    assert ended.code == 0, (ended, log)
    found = attack.breaches("".join(line.split(" ", 3)[3] for line in log.splitlines()))
    if tty:
        assert found.pop("a_descriptor_was_left_open", "stdin") == "stdin"
    assert found == {}
    assert socket.gethostname() == host


async def hook_request(attack: ContainerAttack, run_dir: RunDir, *argv: str) -> dict[str, Any]:
    """The request for a hook in a container."""
    launch = json.loads((run_dir.path / shim.LAUNCH).read_text())
    plain = attack.level is IsolationLevel.PLAIN
    pid = 0 if plain else await inside(run_dir, attack.level, ids=launch["ids"])
    return {
        "argv": argv,
        **{key: launch[key] for key in ("env", "cwd", "ids")},
        "pid": pid,
        "start": shim.start_time(pid),
    }


async def run_hook(attack: ContainerAttack, run_dir: RunDir, *argv: str) -> tuple[int, str, str]:
    """Run a hook in a container; return its exit code and output."""
    await wait_for(lambda: run_dir.read_claim())
    wanted = await hook_request(attack, run_dir, *argv)
    pipe = asyncio.subprocess.PIPE
    hook = await attack.start(Path(nsenter.__file__), stdin=pipe, stdout=pipe, stderr=pipe)
    out, err = await hook.communicate(json.dumps(wanted).encode())
    assert hook.returncode is not None
    return hook.returncode, out.decode(), err.decode()


async def test_hook_cannot_escape(attack: ContainerAttack) -> None:
    run_dir = attack.prepare("sleep", "60")
    started = await attack.start(SHIM, str(run_dir.path))
    code, out, err = await run_hook(attack, run_dir, attack.program, "-I", "-S", str(PROGRAM))
    assert code == 0, err
    assert attack.breaches(out.splitlines()[-1]) == {}
    started.send_signal(signal.SIGUSR1)
    await started.wait()


@contextlib.contextmanager
def command_streams(*, tty: bool) -> Iterator[tuple[list[int], int]]:
    """Streams of a client's command, and the other end of its output."""
    if tty:
        output, end = os.openpty()
        ends = [end] * 3
    else:
        output, end = os.pipe()
        ends = [os.open(os.devnull, os.O_RDONLY), end, end]
    try:
        yield ends, output
    finally:
        for each in {*ends, output}:
            with contextlib.suppress(OSError):  # closed by the test
                os.close(each)


@pytest.mark.parametrize("tty", [False, True])
async def test_command_of_a_client_cannot_escape(attack: ContainerAttack, tty: bool) -> None:
    run_dir = attack.prepare("sleep", "60")
    started = await attack.start(SHIM, str(run_dir.path))
    await wait_for(lambda: run_dir.read_claim())
    argv = (attack.program, "-I", "-S", str(PROGRAM))
    request = await hook_request(attack, run_dir, *argv)
    with command_streams(tty=tty) as (ends, output):
        wanted = {**request, "stdio": ends, "tty": tty}
        pipe = asyncio.subprocess.PIPE
        command = await attack.start(
            Path(nsenter.__file__), stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=set(ends)
        )
        for end in set(ends):
            os.close(end)
        reading = asyncio.get_running_loop().run_in_executor(None, read_all, output)
        errors = await command.communicate(json.dumps(wanted).encode())
        text = await reading
    assert command.returncode == 0, (errors, text)
    found = attack.breaches(text.splitlines()[-1])
    if tty:
        assert found.pop("a_descriptor_was_left_open", "stdin") == "stdin"
    assert found == {}
    started.send_signal(signal.SIGUSR1)
    await started.wait()


def read_all(descriptor: int) -> str:
    """What is written to a pipe or terminal until its other end is closed."""
    found = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while data := os.read(descriptor, 65536):
            found += data
    return found.decode()


async def test_command_of_a_client_enters_no_other_process_than_the_container_s(
    attack: ContainerAttack,
) -> None:
    """By the time at which the command starts, the process has ended, or its id is another's."""
    if attack.level is IsolationLevel.PLAIN:
        pytest.skip("without a sandbox nothing is entered")
    run_dir = attack.prepare("sleep", "60")
    started = await attack.start(SHIM, str(run_dir.path))
    await wait_for(lambda: run_dir.read_claim())
    request = await hook_request(attack, run_dir, "true")
    pipe = asyncio.subprocess.PIPE
    for change in ({"start": request["start"] - 1}, {"pid": NO_PID}):
        hook = await attack.start(Path(nsenter.__file__), stdin=pipe, stdout=pipe, stderr=pipe)
        _, errors = await hook.communicate(json.dumps({**request, **change}).encode())
        assert (hook.returncode, errors.decode()) == (126, "the container has exited\n")
    started.send_signal(signal.SIGUSR1)
    await started.wait()


SANDBOXES = [IsolationLevel.BUBBLEWRAP, IsolationLevel.UNSHARE, *IMAGES_BY]
Replaced = tuple[list[rootfs.Mount], list[str]]


@pytest.fixture(scope="module")
def replacement_files() -> Iterator[replaced_programs.ReplacementFiles]:
    with new_directory() as created:
        yield replaced_programs.ReplacementFiles(created)


@pytest.fixture(params=replaced_programs.REPLACEMENTS, ids=lambda each: each.__name__)
def replaced(
    request: pytest.FixtureRequest,
    attack: ContainerAttack,
    replacement_files: replaced_programs.ReplacementFiles,
) -> Replaced:
    """Mounts of a pod that replace what is executed or loaded, and a command that does."""
    if request.param is replaced_programs.preloaded_library and shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    return replacement_files.volume(attack.data, request.param, attack.program)


def assert_rights_of_the_pod(attack: ContainerAttack, output: str, argv: Sequence[str]) -> None:
    """Assert that replacements ran with the pod's rights only, and that *argv* executed one."""
    found = replaced_programs.reports(output)
    assert found or argv == ["/bin/true"], output
    for each in found:
        assert not each.is_administrator, output
        assert -1 not in each.host_ids, output
        if attack.user == 0:
            assert each.host_ids <= set(range(SHARED, SHARED + ID_RANGE_SIZE)), output


@pytest.mark.parametrize("attack", SANDBOXES, indirect=True)
async def test_what_a_pod_replaced_is_executed_with_its_rights_alone(
    attack: ContainerAttack, replaced: Replaced
) -> None:
    mounts, argv = replaced
    run_dir = attack.prepare(*argv, mounts=mounts)
    shim_process = await attack.start(SHIM, str(run_dir.path), stderr=asyncio.subprocess.PIPE)
    _, errors = await shim_process.communicate()
    assert run_dir.exit_record() is not None
    log = (attack.data / "logs" / "0.log").read_text()
    assert_rights_of_the_pod(attack, log + errors.decode(), argv)


@pytest.mark.parametrize("attack", SANDBOXES, indirect=True)
async def test_hook_executes_what_a_pod_replaced_with_the_rights_of_the_pod_alone(
    attack: ContainerAttack, replaced: Replaced
) -> None:
    mounts, argv = replaced
    run_dir = attack.prepare("/bin/sleep", "60", run_as=1000, mounts=mounts)
    started = await attack.start(SHIM, str(run_dir.path))
    try:
        _, out, err = await run_hook(attack, run_dir, *argv)
        assert_rights_of_the_pod(attack, out + err, argv)
        _, out, err = await run_hook(attack, run_dir, "no-such-program")
        # A container whose program cannot be executed ends, maybe before the hook enters it.
        assert "No such file" in err or ("No such process" in err and argv == ["/bin/true"])
        assert_rights_of_the_pod(attack, out + err, ["/bin/true"])
    except HandlerError:
        assert run_dir.exit_record() is not None, "no program could be executed"
    finally:
        if started.returncode is None:
            started.send_signal(signal.SIGUSR1)
        await started.wait()


async def test_no_process_of_a_container_outlives_its_shim(attack: ContainerAttack) -> None:
    """Not even one that cleared its environment, and so its tag."""
    if attack.level is IsolationLevel.PLAIN:
        pytest.skip("without a sandbox such a process is not found")
    seconds = f"60.{secrets.randbits(48)}"
    run_dir = attack.prepare("env", "-i", "/bin/sleep", seconds)
    started = await attack.start(SHIM, str(run_dir.path))

    def alive() -> bool:
        lines = Path("/proc").glob("[0-9]*/cmdline")
        return any(seconds.encode() in read(line) for line in lines)

    await wait_for(alive)
    started.kill()
    await started.wait()
    if attack.user == 0:
        runs.kill_tagged(run_dir.name)  # only root can read the environment of all processes
    await wait_for(lambda: not alive())


def read(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""
