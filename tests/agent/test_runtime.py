"""Runs as real processes: exit records, isolation, and at most one start."""

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.agent_cluster import make_world_writable
from support.polling import wait_for
from support.sandbox import Sandbox

from batholith.local.agent.runtime import rootfs, shim
from batholith.local.agent.runtime.ids import SHARED, IdMode, Ids
from batholith.local.agent.runtime.runs import (
    ContainerProcess,
    IsolationLevel,
    LaunchSpec,
    RunDir,
    ShimProcess,
    detect_isolation,
    lost_exit_record,
)
from batholith.local.agent.runtime.stop_signals import signal_number
from batholith.machinery.clock import SystemClock

pytestmark = pytest.mark.process


def test_a_program_is_searched_in_the_path_of_its_container(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    env = {"PATH": f"{tmp_path}/absent:{first}:{second}", "CODE": "7"}
    with pytest.raises(FileNotFoundError, match='exec: "program": No such file or directory'):
        shim.spawn(["program"], env)
    for directory, mode in ((first, 0o644), (second, 0o755)):
        directory.mkdir()
        (directory / "program").write_text("#!/bin/sh\nexit $(($CODE + $1))\n")
        (directory / "program").chmod(mode)
    for program in ("program", f"{second}/program"):
        child = shim.spawn([program, "2"], env)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    for program in (f"{first}/program", "program"):
        with pytest.raises(PermissionError, match=f'exec: "{program}": Permission denied'):
            shim.spawn([program], {"PATH": str(first)})


def alive(text: str) -> list[int]:
    """Return the processes with *text* in their command line."""
    found = []
    for run_dir in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if run_dir.name.isdigit() and text.encode() in (run_dir / "cmdline").read_bytes():
                found.append(int(run_dir.name))
    return found


def unique_seconds() -> str:
    """Return a unique duration for `sleep`, by which its process is found."""
    return f"60.{random.getrandbits(48)}"


def test_root_uses_bubblewrap_only_without_id_ranges(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root has id ranges")
    found = detect_isolation()
    assert found.isolation is not IsolationLevel.BUBBLEWRAP or found.id_mode is IdMode.OWN
    launch_spec = LaunchSpec(
        argv=["true"],
        env={},
        cwd="/",
        log=tmp_path / "log",
        isolation=IsolationLevel.BUBBLEWRAP,
        ids=Ids(SHARED),
    )
    with pytest.raises(ValueError, match="own user only"):
        RunDir(tmp_path / "run").prepare(launch_spec)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)]
)
async def test_exit_code_is_that_of_the_main_process(box: Sandbox, script: str, code: int) -> None:
    ended = await box.run(script)
    assert (ended.code, ended.reason) == (code, "")


async def test_missing_program_is_a_start_error(box: Sandbox) -> None:
    ended = await box.run(["no-such-program"])
    assert (ended.code, ended.reason) == (128, "StartError")
    assert "no-such-program" in ended.message or "No such file" in ended.message
    assert box.output() == [("stderr", f"cannot start: {ended.message}")]


def test_a_shim_imports_no_slow_module_that_it_does_not_need() -> None:
    """Each container has one, whose imports are a large share of what its start costs."""
    path = str(Path(shim.__file__).parent)
    program = "import sys; sys.path.append(sys.argv[1]); import shim; print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", program, path]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert {"shim", "mounting", "image_root"} <= set(loaded)
    assert not {"attach", "dataclasses", "inspect", "pathlib", "typing"} & set(loaded)


async def test_output_is_logged_by_line_with_its_stream(box: Sandbox) -> None:
    script = 'echo "$GREETING"; echo bad >&2; printf unfinished; env | grep -c .'
    await box.run(script)
    lines = box.output()
    assert ("stdout", "hello") in lines
    assert ("stderr", "bad") in lines
    assert any(stream == "stdout" and text.startswith("unfinished") for stream, text in lines)


async def test_full_disk_loses_output_but_not_the_container(box: Sandbox) -> None:
    run_dir = box.prepare("echo x; sleep 0.1; echo x; exit 3")
    text = json.loads((run_dir.path / shim.LAUNCH).read_text())
    (run_dir.path / shim.LAUNCH).write_text(json.dumps({**text, "log": "/dev/full"}))
    ended = await ContainerProcess(
        run_dir, ShimProcess.of(run_dir.start()), clock=SystemClock()
    ).wait()
    assert ended.code == 3


async def test_environment_of_the_agent_does_not_leak(box: Sandbox) -> None:
    os.environ["LEAK"] = "secret"
    try:
        await box.run(["env"])
    finally:
        del os.environ["LEAK"]
    shown = {line.partition("=")[0] for _, line in box.output()}
    assert "GREETING" in shown
    assert "LEAK" not in shown


async def test_sigterm_reaches_a_main_process_that_handles_it(box: Sandbox) -> None:
    script = "trap 'echo caught; exit 5' TERM; echo up; while :; do sleep 0.02; done"
    process = box.start(script)
    await box.until_logged("up")
    process.terminate()
    assert (await process.wait()).code == 5
    assert ("stdout", "caught") in box.output()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1, signal.SIGRTMIN + 3])
async def test_the_container_s_own_signal_stops_it(box: Sandbox, number: int) -> None:
    script = f"trap 'echo caught; exit 5' {number}; echo up; while :; do sleep 0.02; done"
    process = box.start(["bash", "-c", script], stop_signal=number)
    await box.until_logged("up")
    process.terminate()
    assert (await process.wait()).code == 5
    assert ("stdout", "caught") in box.output()


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("SIGINT", 2), ("INT", 2), ("sigint", 2), ("2", 2), ("SIGRTMIN+3", signal.SIGRTMIN + 3),
        ("RTMAX-1", signal.SIGRTMAX - 1), ("SIGRTMAX", signal.SIGRTMAX), ("SIGRTMIN+99", None),
        ("SIGNO", None), ("", None), ("0", None), ("99999", None), ("-9", None), ("٣", None),
    ],
)  # fmt: skip
async def test_signals_have_the_names_of_pods_and_of_images(name: str, number: int | None) -> None:
    assert signal_number(name) == number


async def test_sigterm_terminates_a_main_process_without_a_handler(box: Sandbox) -> None:
    process = box.start("echo up; sleep 60")
    await box.until_logged("up")
    process.terminate()
    assert (await process.wait()).code == 143


async def test_a_fork_bomb_takes_no_more_than_its_own_processes(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    if sandbox.ids.base is None and os.geteuid() == 0:
        pytest.skip("the kernel limits no processes of root, and there are no ranges of ids")
    bomb = "n=0; while [ $n -lt 200 ]; do sleep 1000 & n=$((n + 1)); echo $n; done; echo all"
    process = sandbox.start(f"trap '' TERM; echo up; {bomb}; sleep 1000", max_processes=40)
    await wait_for(lambda: process.run_dir.is_finished or "39" in sandbox.lines())
    other = Sandbox(tmp_path / "other", sandbox.level)
    assert (await other.run("sleep 0 & wait; echo fine", max_processes=40)).code == 0
    assert other.lines() == ["fine"]
    await process.kill()
    await process.wait()
    lines = sandbox.lines()
    assert "30" in lines
    assert "40" not in lines


@pytest.mark.parametrize(("own", "number", "limit"), [(90, 40, 40), (30, 40, 30), (30, 0, 30)])
async def test_a_lower_limit_of_the_agent_s_processes_stays(
    own: int, number: int, limit: int
) -> None:
    program = (
        "import resource; from batholith.local.agent.runtime import shim; "
        f"resource.setrlimit(resource.RLIMIT_NPROC, ({own}, {own})); "
        f"shim.limit_processes({number}); print(resource.getrlimit(resource.RLIMIT_NPROC))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out.decode() == f"({limit}, {limit})\n"


async def test_kill_kills_all_processes_of_the_run(box: Sandbox) -> None:
    tag = unique_seconds()
    script = f"trap '' TERM; (setsid sleep {tag} &) ; setsid sleep {tag} & echo up; sleep {tag}"
    process = box.start(script)
    await box.until_logged("up")
    process.terminate()
    await process.kill()
    assert (await process.wait()).code == 137
    assert alive(tag) == []


async def test_no_process_outlives_the_main_process(box: Sandbox) -> None:
    tag = unique_seconds()
    script = f"setsid sleep {tag} & (sleep {tag} & sleep {tag} &); exit 4"
    ended = await box.run(script)
    assert ended.code == 4
    assert alive(tag) == []


async def test_cancelled_run_never_starts(plain: Sandbox) -> None:
    run_dir = plain.prepare(["touch", str(plain.base / "ran")])
    assert run_dir.cancel()
    await asyncio.to_thread(os.waitpid, run_dir.start(), 0)
    assert not (plain.base / "ran").exists()
    assert run_dir.exit_record() is None
    assert run_dir.shim_pid() is None


async def test_concurrent_shims_start_a_run_once(plain: Sandbox) -> None:
    script = f"echo x >> {plain.base}/ran"
    run_dir = plain.prepare(script)
    for pid in [run_dir.start() for _ in range(4)]:
        await asyncio.to_thread(os.waitpid, pid, 0)
    assert (plain.base / "ran").read_text() == "x\n"
    assert not run_dir.cancel()


async def test_run_of_a_killed_shim_is_lost_and_leaves_no_process(box: Sandbox) -> None:
    tag = unique_seconds()
    run_dir = box.prepare(f"echo up; setsid sleep {tag} & sleep {tag}")
    pid = run_dir.start()
    process = ContainerProcess(run_dir, ShimProcess.of(pid), clock=SystemClock())
    await box.until_logged("up")
    await wait_for(lambda: len(alive(tag)) >= 3)
    os.kill(pid, signal.SIGKILL)
    ended = await process.wait()
    assert (ended.code, ended.reason) == (137, "ContainerStatusUnknown")
    await wait_for(lambda: not alive(tag))
    assert lost_exit_record(run_dir).started > 0


async def test_run_goes_on_if_the_agent_exits_during_its_start(box: Sandbox) -> None:
    run_dir = box.prepare("test ! -e /proc/self/fd/3 || echo leaked; exit 6")
    read, write = os.pipe()
    os.close(read)
    process = ContainerProcess(run_dir, ShimProcess.of(run_dir.start(write)), clock=SystemClock())
    os.close(write)
    assert (await process.wait()).code == 6
    assert box.output() == []


async def test_reused_pid_is_not_mistaken_for_the_shim(plain: Sandbox) -> None:
    run_dir = plain.prepare(["true"])
    text = f'{{"pid": {os.getpid()}, "start": 1, "boot": "{shim.boot_id()}"}}'
    (run_dir.path / shim.CLAIM).write_text(text)
    assert run_dir.shim_pid() is None


async def test_a_sandboxed_container_sees_its_mounts_and_may_not_write_elsewhere(
    sandbox: Sandbox,
) -> None:
    data, secret = make_world_writable(sandbox.base / "data"), sandbox.base / "secret"
    secret.write_text("key")
    mounts = [
        rootfs.Mount(str(data), "/some/path"),
        rootfs.Mount(str(data), "/etc/volcano/deep", read_only=True),
        rootfs.Mount(str(secret), "/root/.ssh/id"),
    ]
    script = (
        "echo new > /some/path/file; cat /etc/volcano/deep/file /root/.ssh/id; hostname;"
        f"touch /etc/volcano/deep/x /usr/x 2>/dev/null || echo refused; ls -A {sandbox.base};"
        "echo $$"
    )
    ended = await sandbox.run(script, *mounts)
    shown = [text for stream, text in sandbox.output() if stream == "stdout"]
    assert shown[:2] == ["new", "keysome-pod"]
    assert "refused" in shown
    assert int(shown[-1]) < 10, "it has its own pid namespace with an init"
    assert ended.code == 0
    assert (data / "file").read_text() == "new\n"
    assert "x" not in os.listdir("/usr")


async def test_sandbox_runs_as_the_requested_user(sandbox: Sandbox) -> None:
    data = make_world_writable(sandbox.base / "data")
    script = (
        "id -u; id -g; touch /some/file; stat -c %u:%g /some/file; test -w /etc || echo refused"
    )
    mounts = [rootfs.Mount(str(data), "/some")]
    ended = await sandbox.run(script, *mounts, user=(1234, 4321))
    shown = sandbox.lines()
    assert (shown, ended.code) == (["1234", "4321", "1234:4321", "refused"], 0)
    assert (data / "file").stat().st_uid == (sandbox.ids.owner(1234) or os.geteuid())


async def test_link_in_a_volume_leads_no_mount_out_of_it(sandbox: Sandbox) -> None:
    volume, outside = make_world_writable(sandbox.base / "volume"), sandbox.base / "outside"
    outside.mkdir()
    (outside / "tokens.json").write_text("secret")
    (volume / "source").symlink_to(outside)
    (volume / "target").symlink_to(outside)
    source = rootfs.Mount(str(volume), "/seen", sub_path="source")
    ended = await sandbox.run(["cat", "/seen/tokens.json"], source)
    assert (ended.code, ended.reason) == (128, "StartError")
    assert "subPath 'source'" in ended.message
    assert sandbox.output() == [("stderr", f"cannot start: {ended.message}")]
    shutil.rmtree(sandbox.base / "pods")
    mounts = [
        rootfs.Mount(str(volume), "/v"),
        rootfs.Mount(str(volume), "/v/target/created/deep"),
        rootfs.Mount(str(outside / "tokens.json"), "/v/target/file"),
    ]
    await sandbox.run(["true"], *mounts)
    assert os.listdir(outside) == ["tokens.json"]


async def test_nested_mounts_and_sub_paths_are_mounted(sandbox: Sandbox) -> None:
    outer, inner = (make_world_writable(sandbox.base / name) for name in ("outer", "inner"))
    make_world_writable(outer / "sub")
    (outer / "here").symlink_to("sub")
    (inner / "file").write_text("inner")
    mounts = [
        rootfs.Mount(str(outer), "/o/a", read_only=True),
        rootfs.Mount(str(inner), "/o/a/sub"),
        rootfs.Mount(str(outer), "/sub", sub_path="here"),
        rootfs.Mount(str(inner), "/name", sub_path="file", read_only=True),
    ]
    script = (
        "cat /o/a/sub/file; touch /o/a/sub/new /sub/mine; touch /o/a/no || echo refused;"
        "cat /name; echo x > /name || echo refused"
    )
    ended = await sandbox.run(script, *mounts)
    shown = [text for stream, text in sandbox.output() if stream == "stdout"]
    assert (ended.code, shown) == (0, ["innerrefused", "innerrefused"])
    assert sorted(os.listdir(inner)) == ["file", "new"]
    assert os.listdir(outer / "sub") == ["mine"]


def test_mount_plan_recreates_only_needed_directories(tmp_path: Path) -> None:
    host = tmp_path / "host"
    for path in ("etc/ssl", "usr/bin", "root/.ssh", "root/.pyenv/bin", "data", "var/lib"):
        (host / path).mkdir(parents=True)
    (host / "bin").symlink_to("usr/bin")
    (host / "etc/passwd").write_text("")
    mounts = [
        rootfs.Mount("/s", "/etc/volcano"),
        rootfs.Mount("/s", "/data"),
        rootfs.Mount("/s", "/a/b"),
    ]
    steps = rootfs.mount_plan(mounts, hidden=["/var/lib"], home="/root", host=str(host))
    assert ("link", "usr/bin", "/bin", "") in steps
    assert ("tmpfs", "755", "/etc", "") in steps, "the machine has no /etc/volcano"
    assert ("show", str(host / "etc/passwd"), "/etc/passwd", "") in steps
    targets = [step[2] for step in steps]
    assert not any(target.startswith(("/data/", "/usr/")) for target in targets)
    assert not any(".ssh" in target for target in targets), "keys stay out"
    assert ("show", str(host / "root/.pyenv/bin"), "/root/.pyenv/bin", "") in steps
    assert targets.index("/var/lib") < targets.index("/etc/volcano")
    assert {step[2] for step in steps if step[0] == "rw"} == {"/etc/volcano", "/data", "/a/b"}


async def test_removed_run_counts_as_finished(plain: Sandbox) -> None:
    run_dir = plain.prepare(["true"])
    assert not run_dir.is_finished
    shutil.rmtree(run_dir.path)
    assert run_dir.is_finished


def test_a_failed_probe_of_a_level_says_what_its_run_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bwrap"
    program.write_text(
        "#!/bin/sh\necho bwrap: no permissions to create new namespace >&2\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = detect_isolation(IsolationLevel.BUBBLEWRAP)
    assert found.isolation is IsolationLevel.PLAIN
    assert all("no permissions to create new namespace" in each for each in found.reasons)
