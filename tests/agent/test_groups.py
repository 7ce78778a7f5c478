"""Supplementary groups of the agent's user, which containers must not have."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from batholith.agent.runtime import groups, shim
from batholith.agent.runtime.rootfs import Mount, mount_plan
from batholith.agent.runtime.runs import (
    IsolationLevel,
    IsolationReport,
    LaunchSpec,
    RunDir,
    groups_warning,
)

GROUP = 4
"""Some group; its file is what containers must not read."""


@pytest.fixture
def account() -> pwd.struct_passwd:
    """A normal user with subordinate group ids, as which root starts the agent's programs."""
    if os.geteuid():
        pytest.skip("only root can start programs with other groups")
    if not os.access("/usr/bin/newgidmap", os.X_OK):
        pytest.skip("newgidmap is not installed")
    for line in Path("/etc/subgid").read_text().splitlines():
        try:
            return pwd.getpwnam(line.split(":")[0])
        except KeyError:
            continue
    pytest.skip("no user has subordinate group ids")


@pytest.fixture
def base(account: pwd.struct_passwd) -> Iterator[Path]:
    """A directory of that user, with a file that its group may read."""
    created = Path(tempfile.mkdtemp(prefix="batholith-groups-", dir="/srv"))
    try:
        (created / "secret").write_text("secret")
        os.chown(created / "secret", 0, GROUP)
        (created / "secret").chmod(0o640)
        os.chown(created, account.pw_uid, account.pw_gid)
        yield created
    finally:
        shutil.rmtree(created)


@pytest.mark.process
@pytest.mark.parametrize("level", [IsolationLevel.BUBBLEWRAP, IsolationLevel.UNSHARE])
@pytest.mark.parametrize("sub_path", ["", "volume"])
def test_container_has_no_supplementary_groups(
    base: Path,
    account: pwd.struct_passwd,
    level: IsolationLevel,
    sub_path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    python = shutil.which("python3", path="/usr/local/bin:/usr/bin")
    if python is None or (level is IsolationLevel.BUBBLEWRAP and not shutil.which("bwrap")):
        pytest.skip("no python3 that all users may run, or no bubblewrap")
    monkeypatch.setattr(sys, "executable", python)
    (base / "volume").mkdir()
    os.seteuid(account.pw_uid)
    try:
        steps = mount_plan([Mount(str(base), "/v", True, sub_path)], hidden=[], home="/no-home")
    finally:
        os.seteuid(0)
    run_dir = RunDir(base / "pods" / "uid" / "c" / "0")
    run_dir.prepare(
        LaunchSpec(
            argv=["sh", "-c", f"cat {base}/secret; grep Groups /proc/self/status"],
            env={"PATH": os.defpath}, cwd="/", log=base / "logs" / "0.log",
            hostname="pod", isolation=level, steps=steps, drop_groups=True,
        )
    )  # fmt: skip
    for path in (base / "pods", base / "logs", base / "volume"):
        for each in (path, *path.rglob("*")):
            os.chown(each, account.pw_uid, account.pw_gid)
    program = Path(shim.__file__).with_name("starting.py")
    subprocess.run(
        [python, "-I", "-S", str(program), str(run_dir.path)],
        user=account.pw_uid, group=account.pw_gid, extra_groups=[GROUP],
        env={"PATH": os.defpath}, check=True,
    )  # fmt: skip
    record = run_dir.exit_record()
    log = (base / "logs" / "0.log").read_text()
    assert record is not None
    assert record.code == 0, (record, log)
    assert "stdout F secret" not in log
    assert log.split("Groups:")[1].split() == []


def test_groups_that_cannot_be_dropped_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(groups, "supplementary", lambda: {GROUP, 987_654})
    sandboxed, plain = map(IsolationReport, (IsolationLevel.UNSHARE, IsolationLevel.PLAIN))
    monkeypatch.setattr(groups, "can_drop", lambda: True)
    assert groups_warning(sandboxed) == ""
    assert "987654" in groups_warning(plain)
    monkeypatch.setattr(groups, "can_drop", lambda: False)
    assert "newgidmap" in groups_warning(sandboxed)
    monkeypatch.setattr(groups, "supplementary", set)
    assert groups_warning(plain) == ""
