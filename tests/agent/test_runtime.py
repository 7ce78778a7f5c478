"""Runs as real processes: how they end, what they see, and that none runs twice."""

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.agent_cluster import make_world_writable
from support.polling import wait_for

from batholith.agent.runtime import rootfs, shim
from batholith.agent.runtime.ids import SHARED, Ids
from batholith.agent.runtime.runs import (
    ContainerProcess,
    ExitRecord,
    IsolationLevel,
    LaunchSpec,
    RunDir,
    detect_isolation,
    lost_exit_record,
)
from batholith.machinery.clock import SystemClock

CLOCK = SystemClock()


@pytest.fixture(params=list(IsolationLevel))
def level(request: pytest.FixtureRequest) -> IsolationLevel:
    """Each level that this machine permits."""
    wanted: IsolationLevel = request.param
    found = detect_isolation(wanted)
    if found.isolation is not wanted:
        pytest.skip("; ".join(found.reasons))
    return wanted


def ids_for(level: IsolationLevel) -> Ids:
    """The user ids that an agent gives at *level*."""
    return Ids(None if os.geteuid() or level is IsolationLevel.PLAIN else SHARED)


def launch(
    base: Path,
    argv: Sequence[str],
    level: IsolationLevel,
    *mounts: rootfs.Mount,
    user: tuple[int, int] = (0, 0),
) -> RunDir:
    folder = RunDir(base / "pods" / "uid" / "c" / "0")
    plan = rootfs.mount_plan(mounts, hidden=[str(base)], home=os.path.expanduser("~"))
    folder.prepare(
        LaunchSpec(
            argv=argv,
            env={"PATH": os.defpath, "GREETING": "hello"},
            cwd="/" if level is not IsolationLevel.PLAIN else str(base),
            log=base / "logs" / "0.log",
            hostname="some-pod",
            isolation=level,
            user=user,
            ids=ids_for(level),
            steps=plan,
        )
    )
    return folder


def log_of(base: Path) -> list[tuple[str, str]]:
    lines = (base / "logs" / "0.log").read_text().splitlines()
    return [(parts[1], parts[3]) for line in lines if len(parts := line.split(" ", 3)) == 4]


async def run(
    base: Path, argv: Sequence[str], level: IsolationLevel, *mounts: rootfs.Mount
) -> ExitRecord:
    folder = launch(base, argv, level, *mounts)
    return await ContainerProcess(folder, folder.start(), clock=CLOCK).wait()


async def until_logged(base: Path, text: str) -> None:
    log = base / "logs" / "0.log"
    await wait_for(lambda: log.exists() and text in log.read_text())


def alive(words: str) -> list[int]:
    """The processes that have *words* in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and words.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def marked() -> str:
    """Seconds to sleep that no other test sleeps, so that the process is found."""
    return f"60.{random.getrandbits(48)}"


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)]
)
async def test_the_exit_code_is_the_main_process_s(
    tmp_path: Path, level: IsolationLevel, script: str, code: int
) -> None:
    ended = await run(tmp_path, ["sh", "-c", script], level)
    assert (ended.code, ended.reason) == (code, "")


async def test_a_program_that_is_not_there_is_a_failed_start(
    tmp_path: Path, level: IsolationLevel
) -> None:
    ended = await run(tmp_path, ["no-such-program"], level)
    assert (ended.code, ended.reason) == (128, "StartError")
    assert "no-such-program" in ended.message or "No such file" in ended.message


async def test_output_is_logged_by_line_with_its_stream(
    tmp_path: Path, level: IsolationLevel
) -> None:
    script = 'echo "$GREETING"; echo bad >&2; printf unfinished; env | grep -c .'
    await run(tmp_path, ["sh", "-c", script], level)
    lines = log_of(tmp_path)
    assert ("stdout", "hello") in lines
    assert ("stderr", "bad") in lines
    assert any(stream == "stdout" and text.startswith("unfinished") for stream, text in lines)


async def test_a_full_disk_costs_output_and_not_the_container(
    tmp_path: Path, level: IsolationLevel
) -> None:
    folder = launch(tmp_path, ["sh", "-c", "echo x; sleep 0.1; echo x; exit 3"], level)
    text = json.loads((folder.path / shim.LAUNCH).read_text())
    (folder.path / shim.LAUNCH).write_text(json.dumps({**text, "log": "/dev/full"}))
    ended = await ContainerProcess(folder, folder.start(), clock=CLOCK).wait()
    assert ended.code == 3


async def test_the_environment_is_the_pod_s_alone(tmp_path: Path, level: IsolationLevel) -> None:
    os.environ["LEAK"] = "secret"
    try:
        await run(tmp_path, ["env"], level)
    finally:
        del os.environ["LEAK"]
    shown = {line.partition("=")[0] for _, line in log_of(tmp_path)}
    assert "GREETING" in shown
    assert "LEAK" not in shown


async def test_term_reaches_a_main_process_that_handles_it(
    tmp_path: Path, level: IsolationLevel
) -> None:
    script = "trap 'echo caught; exit 5' TERM; echo up; while :; do sleep 0.02; done"
    folder = launch(tmp_path, ["sh", "-c", script], level)
    process = ContainerProcess(folder, folder.start(), clock=CLOCK)
    await until_logged(tmp_path, "up")
    process.terminate()
    assert (await process.wait()).code == 5
    assert ("stdout", "caught") in log_of(tmp_path)


async def test_term_ends_a_main_process_that_does_not_care(
    tmp_path: Path, level: IsolationLevel
) -> None:
    folder = launch(tmp_path, ["sh", "-c", "echo up; sleep 60"], level)
    process = ContainerProcess(folder, folder.start(), clock=CLOCK)
    await until_logged(tmp_path, "up")
    process.terminate()
    assert (await process.wait()).code == 143


async def test_a_kill_takes_everything_along(tmp_path: Path, level: IsolationLevel) -> None:
    mark = marked()
    script = f"trap '' TERM; (setsid sleep {mark} &) ; setsid sleep {mark} & echo up; sleep {mark}"
    folder = launch(tmp_path, ["sh", "-c", script], level)
    process = ContainerProcess(folder, folder.start(), clock=CLOCK)
    await until_logged(tmp_path, "up")
    process.terminate()
    await process.kill()
    assert (await process.wait()).code == 137
    assert alive(mark) == []


async def test_nothing_outlives_the_main_process(tmp_path: Path, level: IsolationLevel) -> None:
    mark = marked()
    script = f"setsid sleep {mark} & (sleep {mark} & sleep {mark} &); exit 4"
    ended = await run(tmp_path, ["sh", "-c", script], level)
    assert ended.code == 4
    assert alive(mark) == []


async def test_a_run_that_was_called_off_never_starts(tmp_path: Path) -> None:
    folder = launch(tmp_path, ["touch", str(tmp_path / "ran")], IsolationLevel.PLAIN)
    assert folder.cancel()
    await asyncio.to_thread(os.waitpid, folder.start(), 0)
    assert not (tmp_path / "ran").exists()
    assert folder.exit_record() is None
    assert folder.shim_pid() is None


async def test_two_shims_of_one_run_start_it_once(tmp_path: Path) -> None:
    script = f"echo x >> {tmp_path}/ran"
    folder = launch(tmp_path, ["sh", "-c", script], IsolationLevel.PLAIN)
    for pid in [folder.start() for _ in range(4)]:
        await asyncio.to_thread(os.waitpid, pid, 0)
    assert (tmp_path / "ran").read_text() == "x\n"
    assert not folder.cancel()


async def test_a_run_whose_shim_was_killed_is_lost_and_leaves_nothing(
    tmp_path: Path, level: IsolationLevel
) -> None:
    mark = marked()
    folder = launch(tmp_path, ["sh", "-c", f"echo up; setsid sleep {mark} & sleep {mark}"], level)
    pid = folder.start()
    process = ContainerProcess(folder, pid, clock=CLOCK)
    await until_logged(tmp_path, "up")
    await wait_for(lambda: len(alive(mark)) >= 3)
    os.kill(pid, signal.SIGKILL)
    ended = await process.wait()
    assert (ended.code, ended.reason) == (137, "ContainerStatusUnknown")
    await wait_for(lambda: not alive(mark))
    assert lost_exit_record(folder).started > 0


async def test_a_recycled_process_id_is_not_taken_for_the_run(tmp_path: Path) -> None:
    folder = launch(tmp_path, ["true"], IsolationLevel.PLAIN)
    text = f'{{"pid": {os.getpid()}, "start": 1, "boot": "{shim.boot_id()}"}}'
    (folder.path / shim.CLAIM).write_text(text)
    assert folder.shim_pid() is None


async def test_a_sandboxed_container_sees_its_mounts_and_may_not_write_elsewhere(
    tmp_path: Path, level: IsolationLevel
) -> None:
    if level is IsolationLevel.PLAIN:
        pytest.skip("plain has no mounts")
    data, secret = make_world_writable(tmp_path / "data"), tmp_path / "secret"
    secret.write_text("key")
    mounts = [
        rootfs.Mount(str(data), "/some/place"),
        rootfs.Mount(str(data), "/etc/volcano/deep", read_only=True),
        rootfs.Mount(str(secret), "/root/.ssh/id"),
    ]
    script = (
        "echo new > /some/place/file; cat /etc/volcano/deep/file /root/.ssh/id; hostname;"
        f"touch /etc/volcano/deep/x /usr/x 2>/dev/null || echo refused; ls -A {tmp_path}; echo $$"
    )
    ended = await run(tmp_path, ["sh", "-c", script], level, *mounts)
    shown = [text for stream, text in log_of(tmp_path) if stream == "stdout"]
    assert shown[:2] == ["new", "keysome-pod"]
    assert "refused" in shown
    assert int(shown[-1]) < 10, "it has process ids of its own, and an init"
    assert ended.code == 0
    assert (data / "file").read_text() == "new\n"
    assert "x" not in os.listdir("/usr")


async def test_a_sandbox_shows_the_user_that_was_asked_for(
    tmp_path: Path, level: IsolationLevel
) -> None:
    if level is IsolationLevel.PLAIN:
        pytest.skip("plain has the agent's user")
    data = make_world_writable(tmp_path / "data")
    script = (
        "id -u; id -g; touch /some/file; stat -c %u:%g /some/file; test -w /etc || echo refused"
    )
    mounts = [rootfs.Mount(str(data), "/some")]
    folder = launch(tmp_path, ["sh", "-c", script], level, *mounts, user=(1234, 4321))
    ended = await ContainerProcess(folder, folder.start(), clock=CLOCK).wait()
    shown = [text for _, text in log_of(tmp_path)]
    assert (shown, ended.code) == (["1234", "4321", "1234:4321", "refused"], 0)
    assert (data / "file").stat().st_uid == (ids_for(level).owner(1234) or os.geteuid())


async def test_a_link_that_a_container_put_into_a_volume_leads_no_mount_out(
    tmp_path: Path, level: IsolationLevel
) -> None:
    if level is IsolationLevel.PLAIN:
        pytest.skip("plain has no mounts")
    volume, outside = make_world_writable(tmp_path / "volume"), tmp_path / "outside"
    outside.mkdir()
    (outside / "tokens.json").write_text("secret")
    (volume / "source").symlink_to(outside)
    (volume / "target").symlink_to(outside)
    source = rootfs.Mount(str(volume), "/seen", sub_path="source")
    ended = await run(tmp_path, ["cat", "/seen/tokens.json"], level, source)
    assert (ended.code, ended.reason) == (128, "StartError")
    assert "subPath 'source'" in ended.message
    assert log_of(tmp_path) == []
    shutil.rmtree(tmp_path / "pods")
    mounts = [
        rootfs.Mount(str(volume), "/v"),
        rootfs.Mount(str(volume), "/v/target/made/deep"),
        rootfs.Mount(str(outside / "tokens.json"), "/v/target/file"),
    ]
    await run(tmp_path, ["true"], level, *mounts)
    assert os.listdir(outside) == ["tokens.json"]


async def test_mounts_lie_in_one_another_and_parts_of_volumes_are_shown(
    tmp_path: Path, level: IsolationLevel
) -> None:
    if level is IsolationLevel.PLAIN:
        pytest.skip("plain has no mounts")
    outer, inner = make_world_writable(tmp_path / "outer"), make_world_writable(tmp_path / "inner")
    make_world_writable(outer / "part")
    (outer / "here").symlink_to("part")
    (inner / "file").write_text("inner")
    mounts = [
        rootfs.Mount(str(outer), "/o/a", read_only=True),
        rootfs.Mount(str(inner), "/o/a/part"),
        rootfs.Mount(str(outer), "/part", sub_path="here"),
        rootfs.Mount(str(inner), "/name", sub_path="file", read_only=True),
    ]
    script = (
        "cat /o/a/part/file; touch /o/a/part/new /part/mine; touch /o/a/no || echo refused;"
        "cat /name; echo x > /name || echo refused"
    )
    ended = await run(tmp_path, ["sh", "-c", script], level, *mounts)
    shown = [text for stream, text in log_of(tmp_path) if stream == "stdout"]
    assert (ended.code, shown) == (0, ["innerrefused", "innerrefused"])
    assert sorted(os.listdir(inner)) == ["file", "new"]
    assert os.listdir(outer / "part") == ["mine"]


def test_a_layout_opens_only_what_mounts_need(tmp_path: Path) -> None:
    host = tmp_path / "host"
    for place in ("etc/ssl", "usr/bin", "root/.ssh", "root/.pyenv", "data", "var/lib"):
        (host / place).mkdir(parents=True)
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
    places = [step[2] for step in steps]
    assert not any(place.startswith(("/data/", "/usr/")) for place in places)
    assert not any(".ssh" in place for place in places), "keys stay out"
    assert ("show", str(host / "root/.pyenv"), "/root/.pyenv", "") in steps
    assert places.index("/var/lib") < places.index("/etc/volcano")
    assert {step[2] for step in steps if step[0] == "rw"} == {"/etc/volcano", "/data", "/a/b"}


def test_a_home_that_is_shown_keeps_its_keys_to_itself(tmp_path: Path) -> None:
    host = tmp_path / "host"
    for place in ("home/me/.ssh", "home/me/.local", "home/me/work"):
        (host / place).mkdir(parents=True)
    (host / "home/me/.netrc").write_text("key")
    steps = rootfs.mount_plan([], hidden=[], home="/home/me", host=str(host))
    assert ("tmpfs", "700", "/home/me/.ssh", "") in steps
    assert ("show", os.devnull, "/home/me/.netrc", "") in steps
    assert not any(step[2] in ("/home/me/.local", "/home/me/work") for step in steps)


async def test_a_run_that_went_with_its_pod_is_over(tmp_path: Path) -> None:
    folder = launch(tmp_path, ["true"], IsolationLevel.PLAIN)
    assert not folder.is_finished
    shutil.rmtree(folder.path)
    assert folder.is_finished
