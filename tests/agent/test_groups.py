"""Supplementary groups of the agent's user, which containers must not have."""

import asyncio
import json
import os
import pwd
import shutil
import signal
import sys
import tempfile
import uuid
from asyncio.subprocess import Process
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.polling import wait_for

from batholith.local.agent.pods.handlers import sandbox_pid as inside
from batholith.local.agent.runtime import groups, mounting, nsenter, shim
from batholith.local.agent.runtime.isolation_warnings import groups_warning
from batholith.local.agent.runtime.rootfs import Mount, mount_plan
from batholith.local.agent.runtime.runs import (
    IsolationLevel,
    IsolationReport,
    LaunchSpec,
    RunDir,
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


@pytest.fixture(params=[IsolationLevel.BUBBLEWRAP, IsolationLevel.UNSHARE])
def level(request: pytest.FixtureRequest) -> IsolationLevel:
    """Each level with a sandbox."""
    if request.param is IsolationLevel.BUBBLEWRAP and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")
    return IsolationLevel(request.param)


@dataclass(frozen=True)
class AgentOfUser:
    """Programs of an agent that *account* runs, with a supplementary group."""

    base: Path
    account: pwd.struct_passwd
    python: str

    def prepare(self, level: IsolationLevel, script: str, sub_path: str = "") -> RunDir:
        """Prepare the run of *script*."""
        (self.base / "volume").mkdir()
        os.seteuid(self.account.pw_uid)
        try:
            mount = Mount(str(self.base), "/v", True, sub_path)
            steps = mount_plan([mount], hidden=[], home="/no-home")
        finally:
            os.seteuid(0)
        run_dir = RunDir(self.base / "pods" / str(uuid.uuid4()) / "c" / "0")
        before = os.getgroups()
        os.setgroups([GROUP])  # as the agent's process has it
        try:
            run_dir.prepare(
                LaunchSpec(
                    argv=["sh", "-c", script], env={"PATH": os.defpath}, cwd="/", steps=steps,
                    log=self.base / "logs" / "0.log", hostname="pod", isolation=level,
                    can_stage=True,
                )
            )  # fmt: skip
        finally:
            os.setgroups(before)
        for path in (self.base / "pods", self.base / "logs", self.base / "volume"):
            for each in (path, *path.rglob("*")):
                os.chown(each, self.account.pw_uid, self.account.pw_gid)
        return run_dir

    async def start(self, program: Path, *arguments: str, **more: Any) -> Process:
        """Start a program of the agent."""
        return await asyncio.create_subprocess_exec(
            self.python, "-I", "-S", str(program), *arguments,
            user=self.account.pw_uid, group=self.account.pw_gid, extra_groups=[GROUP],
            env={"PATH": os.defpath}, **more,
        )  # fmt: skip


@pytest.fixture
def agent(base: Path, account: pwd.struct_passwd, monkeypatch: pytest.MonkeyPatch) -> AgentOfUser:
    """The agent's programs, run by an interpreter that all users may execute."""
    python = shutil.which("python3", path="/usr/local/bin:/usr/bin")
    if python is None:
        pytest.skip("no python3 that all users may run")
    monkeypatch.setattr(sys, "executable", python)
    return AgentOfUser(base, account, python)


SHIM = Path(shim.__file__).with_name("starting.py")


@pytest.mark.process
@pytest.mark.parametrize("sub_path", ["", "volume"])
async def test_container_has_no_supplementary_groups(
    agent: AgentOfUser, level: IsolationLevel, sub_path: str
) -> None:
    script = f"cat {agent.base}/secret; grep Groups /proc/self/status"
    run_dir = agent.prepare(level, script, sub_path)
    await (await agent.start(SHIM, str(run_dir.path))).wait()
    record, log = run_dir.exit_record(), (agent.base / "logs" / "0.log").read_text()
    assert record is not None
    assert record.code == 0, (record, log)
    assert "stdout F secret" not in log
    (shown,) = (line for line in log.splitlines() if "Groups:" in line)
    assert shown.split("Groups:")[1].split() == [], log


@pytest.mark.process
async def test_container_starts_where_the_groups_cannot_be_dropped(
    agent: AgentOfUser, level: IsolationLevel
) -> None:
    run_dir = agent.prepare(level, "echo started")
    program = agent.base / "starting.py"
    program.write_text(
        f"import sys; sys.path.append({str(SHIM.parent)!r}); import groups, shim\n"
        "groups._NEWGIDMAP = '/bin/false'; sys.exit(shim.main(sys.argv[1]))"
    )
    await (await agent.start(program, str(run_dir.path))).wait()
    assert "stdout F started" in (agent.base / "logs" / "0.log").read_text()


@pytest.mark.process
async def test_hook_has_no_supplementary_groups(agent: AgentOfUser, level: IsolationLevel) -> None:
    run_dir = agent.prepare(level, "sleep 60")
    started = await agent.start(SHIM, str(run_dir.path))
    await wait_for(lambda: run_dir.read_claim())
    launch = json.loads((run_dir.path / shim.LAUNCH).read_text())
    pid = await inside(run_dir, level, ids=launch["ids"])
    request = {
        **{key: launch[key] for key in ("env", "cwd", "ids")},
        "argv": ["grep", "Groups", "/proc/self/status"],
        "pid": pid,
        "start": shim.start_time(pid),
    }
    pipe = asyncio.subprocess.PIPE
    hook = await agent.start(Path(nsenter.__file__), stdin=pipe, stdout=pipe, stderr=pipe)
    output, errors = await hook.communicate(json.dumps(request).encode())
    started.send_signal(signal.SIGUSR1)
    await started.wait()
    assert output.split() == [b"Groups:"], (errors, output)


def test_groups_that_cannot_be_dropped_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(groups, "supplementary", lambda: {GROUP, 987_654})
    sandboxed, plain = map(IsolationReport, (IsolationLevel.UNSHARE, IsolationLevel.PLAIN))
    monkeypatch.setattr(mounting, "drops_groups", lambda: True)
    assert groups_warning(sandboxed) == ""
    assert "987654" in groups_warning(plain)
    monkeypatch.setattr(mounting, "drops_groups", lambda: False)
    assert "newgidmap" in groups_warning(sandboxed)
    monkeypatch.setattr(groups, "supplementary", set)
    assert groups_warning(plain) == ""
