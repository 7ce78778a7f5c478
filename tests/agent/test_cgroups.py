"""Control groups of containers: on a tree of files, and where there is one on a real hierarchy.

No controller need be free on a machine that runs the tests, so what controllers enforce is not
tested: only what they are asked for. Groups, their end and their delegation need none.
"""

import os
import signal
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from support.agent import container, decode_pod, manifest
from support.polling import wait_for
from support.sandbox import Sandbox

from batholith.local.agent.pods.container_worker import PodContext
from batholith.local.agent.pods.records import PodDir
from batholith.local.agent.runtime import cgroups, shim
from batholith.local.agent.runtime.cgroups import CgroupReport, create, detect, limits_of
from batholith.local.agent.runtime.runs import ExitRecord, LaunchSpec, RunDir

ALL = frozenset(cgroups.CONTROLLERS)
FILES = ("cgroup.procs", "cgroup.subtree_control", "cgroup.kill")
OF_CONTROLLERS = {
    "cpu": ("cpu.max", "cpu.weight"),
    "memory": ("memory.max", "memory.oom.group", "memory.events"),
    "pids": ("pids.max",),
}


class Tree:
    """A hierarchy of files, which has no kernel behind it."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mount = directory / "cgroup"
        self.proc = directory / "proc"
        self.offered = "cpu io memory pids"
        self.data_dir = directory / "data"
        (self.proc / "self").mkdir(parents=True)
        self.set_proc("/user.slice/app")
        monkeypatch.setattr(cgroups, "create_group", self.create)
        monkeypatch.setattr(cgroups, "remove_group", self.removed)
        self.create(self.mount)

    def set_proc(self, own: str) -> None:
        line = f"30 24 0:26 / {self.mount} rw,nosuid shared:4 - cgroup2 cgroup rw\n"
        (self.proc / "self/mountinfo").write_text(line)
        (self.proc / "self/cgroup").write_text(f"1:name=systemd:/x\n0::{own}\n")

    def create(self, group: Path) -> None:
        group.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (group / name).touch()
        (group / "cgroup.controllers").write_text(f"{self.offered}\n")
        for name in self.offered.split():
            for each in OF_CONTROLLERS.get(name, ()):
                (group / each).touch()

    def removed(self, group: Path) -> bool:
        for path in sorted(group.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        group.rmdir()
        return True

    def detect(self, problem: str = "") -> CgroupReport:
        return detect(self.data_dir, proc=self.proc, probe=lambda group: problem)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    return Tree(tmp_path, monkeypatch)


def limited(requests: dict[str, str], limits: dict[str, str]) -> Any:
    pod = decode_pod(manifest("p", container(resources={"requests": requests, "limits": limits})))
    return pod.containers["c"]


@pytest.mark.parametrize(
    ("requests", "limits", "expected"),
    [
        ({}, {}, {"cpu.weight": "1"}),
        ({"cpu": "1"}, {"cpu": "2500m"}, {"cpu.max": "250000 100000", "cpu.weight": "39"}),
        ({"cpu": "1000"}, {"cpu": "1m"}, {"cpu.max": "1000 100000", "cpu.weight": "10000"}),
        ({}, {"memory": "64Mi"}, {"memory.max": str(64 << 20), "memory.swap.max": "0"}),
    ],
)
def test_requests_and_limits_become_control_files(
    requests: dict[str, str], limits: dict[str, str], expected: dict[str, str]
) -> None:
    files = limits_of(limited(requests, limits).resources, max_processes=99)
    fixed = {"cpu.weight": "1", "memory.oom.group": "1", "pids.max": "99"}
    assert files == {**fixed, **expected}


def test_a_run_has_a_group_with_its_limits(tree: Tree) -> None:
    report = tree.detect()
    assert report.controllers == ALL
    assert report.reason == ""
    assert report.root is not None
    assert report.root.parent == tree.mount
    assert not (report.root / "probe").exists()
    files = limits_of(
        limited({"cpu": "1"}, {"cpu": "2", "memory": "1Gi"}).resources, max_processes=7
    )
    containers = [limited({"cpu": "1"}, {}), limited({"cpu": "500m"}, {}), limited({}, {})]
    of_pod = cgroups.pod_files(containers)
    group = Path(create(report, "uid", "c-0", files, of_pod=of_pod))
    assert (group.parent / "cpu.weight").read_text() == "59"
    assert group == report.root / "uid" / "c-0"
    assert (group / "cpu.max").read_text() == "200000 100000"
    assert (group / "memory.max").read_text() == str(1 << 30)
    assert (group / "memory.oom.group").read_text() == "1"
    assert (group / "pids.max").read_text() == "7"
    assert not (group / "memory.swap.max").exists()
    for each in (report.root, group.parent):
        # The last write, over the beginning of an earlier one: there is no kernel behind it.
        assert (each / "cgroup.subtree_control").read_text().startswith("+pids")


def test_limits_of_a_missing_controller_are_left_out_and_reported(tree: Tree) -> None:
    tree.offered = "pids"
    report = tree.detect()
    assert report.controllers == {"pids"}
    assert report.reason == f"{tree.mount} has no controller cpu, memory"
    group = Path(
        create(
            report, "uid", "c-0", limits_of(limited({}, {"cpu": "1"}).resources, max_processes=7)
        )
    )
    assert (group / "pids.max").read_text() == "7"
    assert not cgroups.limits_memory(str(group))


def test_without_usable_groups_there_are_none(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tree.detect("no process can be moved")
    assert (report.root, report.reason) == (None, "no process can be moved")
    assert create(report, "uid", "c-0", {}) == ""
    tree.offered = "io"
    report = tree.detect()
    assert report.root is None
    assert "none of the controllers cpu, memory, pids" in report.reason
    monkeypatch.setattr(cgroups, "is_writable", lambda group: False)
    assert "delegated" in tree.detect().reason
    (tree.proc / "self/mountinfo").write_text("30 24 0:26 / / rw - ext4 disk rw\n")
    assert tree.detect().reason == "no cgroup2 file system is mounted"


def test_a_normal_user_has_groups_below_the_uppermost_one_of_theirs(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.set_proc("/user.slice/user@7.service/app.slice/shell.scope")
    owned = tree.mount / "user.slice/user@7.service"
    for each in (owned.parent, owned, owned / "app.slice", owned / "app.slice/shell.scope"):
        tree.create(each)
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    monkeypatch.setattr(cgroups, "is_writable", lambda group: group.is_relative_to(owned))
    report = tree.detect()
    assert report.root is not None
    assert report.root.parent == owned


def test_a_group_of_an_unknown_pod_is_removed(tree: Tree) -> None:
    report = tree.detect()
    for uid in ("known", "unknown"):
        create(report, uid, "c-0", {})
    cgroups.remove_stale(report, ["known"])
    assert report.root is not None
    assert sorted(each.name for each in report.root.iterdir() if each.is_dir()) == ["known"]


@pytest.mark.parametrize(
    ("events", "code", "reason"),
    [
        ("oom 1\noom_kill 1\n", 137, "OOMKilled"),
        ("oom 1\noom_kill 0\n", 137, "Error"),
        ("oom_kill 1\n", 1, "Error"),
    ],
)
def test_a_container_that_the_kernel_killed_for_its_memory_is_reported(
    tmp_path: Path, events: str, code: int, reason: str
) -> None:
    (tmp_path / "memory.events").write_text(events)
    pod = decode_pod({**manifest("p"), "metadata": {"name": "p", "uid": "u"}})
    pod_dir = PodDir.of(tmp_path, pod)
    run = RunDir(pod_dir.path / "containers" / "c" / "0")
    run.prepare(
        LaunchSpec(argv=["a"], env={}, cwd="/", log=pod_dir.log_path(run), cgroup=str(tmp_path))
    )
    unused = cast("Any", None)
    context = PodContext(node=unused, pod_dir=pod_dir, pod=lambda: pod, report=unused, spawn=unused)
    now = datetime.now(UTC)
    exited = context.exited_event(run, ExitRecord(code=code, at=now.timestamp()), steady_at=now)
    assert (exited.reason or "Error", exited.code) == (reason, code)


# --- on a real hierarchy --------------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[Path]:
    """A group of the machine, where this user may create one; it needs no controllers."""
    mount = cgroups.mount_point(Path("/proc"))
    base = None if mount is None else cgroups.base_group(mount, Path("/proc"))
    if base is None:
        pytest.skip("no control group is delegated to this user")
    created = base / f"batholith-test-{uuid.uuid4().hex[:8]}"
    cgroups.create_group(created)
    if cgroups.move_process(created):
        pytest.skip("no process can be moved to a control group")
    yield created
    assert cgroups.remove_group(created)
    assert not created.exists()


def created(group: Path) -> Path:
    """Return the group of a container."""
    return Path(create(CgroupReport(group, frozenset()), "uid", "c-0", {"pids.max": "7"}))


def exit_signal(child: int) -> int:
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def sleep_in(group: Path) -> int:
    """Start a process in *group*, and return its id."""
    child = os.fork()
    if child == 0:
        shim.enter_cgroup(str(group))
        os.execvp("sleep", ["sleep", "1000"])
    return child


@pytest.mark.process
async def test_all_processes_of_a_container_but_its_shim_are_in_its_group(
    box: Sandbox, group: Path
) -> None:
    own = created(group)
    process = box.start("(setsid sleep 1000 &); echo up; sleep 1000", cgroup=str(own))
    await box.until_logged("up")

    def members() -> list[int]:
        return [int(each) for each in (own / "cgroup.procs").read_text().split()]

    await wait_for(lambda: len(members()) >= 3)  # the last one starts after the output
    assert process.pid not in members()
    assert cgroups.remove_group(own)
    assert not own.exists()
    assert (await process.wait()).code == 137


@pytest.mark.process
async def test_a_container_whose_group_is_missing_does_not_start(box: Sandbox, group: Path) -> None:
    record = await box.run("true", cgroup=str(group / "absent"))
    assert record.reason == "StartError"
    assert "No such file" in record.message


@pytest.mark.process
async def test_groups_of_an_ended_agent_are_removed_with_their_processes(group: Path) -> None:
    own = created(group)
    child = sleep_in(own)
    await wait_for(lambda: str(child) in (own / "cgroup.procs").read_text().split())
    cgroups.remove_stale(CgroupReport(group, frozenset()), [])
    assert exit_signal(child) == signal.SIGKILL
    assert not own.parent.exists()


_USER = 65534


def detected_by_user(own: Path, data_dir: Path) -> str:
    """Return the reason that an agent of a normal user reports whose process is in *own*."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            shim.enter_cgroup(str(own))
            os.setgroups([])
            os.setresgid(_USER, _USER, _USER)
            os.setresuid(_USER, _USER, _USER)
            os.write(write, cgroups.detect(data_dir).reason.encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        reason = file.read()
    os.waitpid(child, 0)
    return reason


@pytest.mark.process
def test_a_normal_user_needs_a_group_that_is_delegated(group: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can delegate a group")
    delegated, own = group / "delegated", group / "delegated" / "session"
    cgroups.create_group(delegated)
    cgroups.create_group(own)
    data_dir = Path("/nonexistent") / tmp_path.name
    nothing = "no control group is delegated to the user of the agent"
    assert detected_by_user(own, data_dir) == nothing
    for each in (delegated, own):
        for name in ("", "cgroup.procs", "cgroup.subtree_control"):
            os.chown(each / name, _USER, _USER)
    reason = detected_by_user(own, data_dir)
    offered = (delegated / "cgroup.controllers").read_text().split()
    missing = [each for each in cgroups.CONTROLLERS if each not in offered]
    assert missing or not reason
    if missing:  # as systemd delegates them, they are those of the uppermost group of the user
        assert reason.startswith(f"{delegated} has no"), reason
        assert reason.endswith(", ".join(missing))
    assert list(delegated.glob("*/probe")) == []
