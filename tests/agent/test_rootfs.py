"""What of the host a container sees: for any layout, and while its directories change."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.agent import container, decode_pod, manifest
from support.agent_cluster import make_world_writable
from support.sandbox import SANDBOXES, Sandbox

from batholith.local.agent.runtime import runs
from batholith.local.agent.runtime.rootfs import Mount, Step, mount_plan
from batholith.local.agent.runtime.runs import (
    ContainerProcess,
    ExitRecord,
    IsolationLevel,
    ShimProcess,
)
from batholith.local.agent.volumes.volumes import MountedVolume, container_mounts
from batholith.machinery.clock import SystemClock

SECRET = "secret"

NAMES = st.sampled_from(["run", "tmp", "var", "home", "me", "me2", "runner", "tmp-x", "data", ".x"])
DIRECTORIES = st.lists(NAMES, min_size=1, max_size=4).map(lambda names: "/" + "/".join(names))


def is_seen(steps: Sequence[Step], host: Path, path: str) -> bool:
    """Return whether the host's *path* is visible: the last mount at or above it decides."""
    seen = False
    for kind, source, target, _ in steps:
        inside = f"{path}/".startswith(f"{target}/")
        if kind == "show":
            assert source == f"{host}{target}", "a host path is shown where it is"
            assert os.path.realpath(source) == source, "no link leads elsewhere"
        if inside and kind != "seal":
            seen = kind == "show"
    return seen


def plant(host: Path, path: str) -> str:
    """Create a secret in the directory *path*, unless a file is in the way; return its path."""
    directory = host / path.lstrip("/")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / SECRET).write_text("")
    return f"/{(directory / SECRET).resolve().relative_to(host)}"


@given(
    data=DIRECTORIES,
    home=DIRECTORIES,
    account_home=DIRECTORIES,
    link=st.none() | st.tuples(NAMES, NAMES),
    targets=st.lists(DIRECTORIES, max_size=3),
    below_secrets=st.booleans(),
    environments=st.lists(DIRECTORIES, max_size=2),
    closed=st.booleans(),
)
@example(
    data="/runner/data",
    home="/home/me",
    account_home="/home/me",
    link=None,
    targets=[],
    below_secrets=False,
    environments=[],
    closed=False,
)
@example(
    data="/data", home="/home/me", account_home="/home/me", link=None, targets=["/home/me/new"],
    below_secrets=True, environments=[], closed=False,
)  # fmt: skip
def test_no_layout_shows_the_data_directory_or_private_entries_of_a_home(
    tmp_path_factory: pytest.TempPathFactory,
    data: str,
    home: str,
    account_home: str,
    link: tuple[str, str] | None,
    targets: list[str],
    below_secrets: bool,
    environments: list[str],
    closed: bool,
) -> None:
    host = tmp_path_factory.mktemp("host").resolve()
    if link is not None and link[0] != link[1]:
        (host / link[1]).mkdir()
        (host / link[0]).symlink_to(f"{host}/{link[1]}")
    secrets = [plant(host, data), plant(host, f"{data}/pods/uid")]
    private = [f"{each}/.ssh" for each in (home, account_home, "/root")]
    private += [f"{home}/.local/share/keyrings", f"{home}/.cargo"]
    secrets += [plant(host, each) for each in private]
    for each in environments:
        (host / each[1:] / "bin").mkdir(parents=True, exist_ok=True)
    if below_secrets:
        targets += [f"{each}/new" for each in (data, *private)]
    (host / home[1:]).chmod(0o700 if closed else 0o755)
    steps = mount_plan(
        [Mount("/s", target) for target in targets],
        hidden=[data],
        home=home,
        other_homes=[account_home],
        host=str(host),
        tools=environments if closed else [],
        visible=environments,
    )
    assert [secret for secret in secrets if is_seen(steps, host, secret)] == []


def test_only_programs_and_libraries_of_tools_are_visible(tmp_path: Path) -> None:
    shown = [
        ".local/bin", ".local/lib", ".local/share/pipx/venvs/black/bin",
        ".local/share/uv/python/cpython-3.12/lib", ".venv/bin", ".venv/pyvenv.cfg",
        ".virtualenvs/one/lib", ".pyenv/shims", ".pyenv/versions/3.11.7/bin", ".conda/envs/a/lib",
        ".cargo/bin", ".rustup/toolchains", ".rustup/settings.toml",
        ".nvm/versions/node/v22/bin", ".asdf/installs/nodejs/22/bin",
    ]  # fmt: skip
    hidden = [
        ".local/share/jupyter/runtime/kernel.json", ".local/share/keyrings/login.keyring",
        ".local/share/batholith/tokens.json", ".local/share/pipx/venvs/black/pipx_metadata.json",
        ".local/state/log", ".venv/pip.conf", ".virtualenvs/one/.env", ".pyenv/.git/config",
        ".conda/environments.txt", ".cargo/credentials.toml", ".cargo/config.toml",
        ".nvm/versions/node/v22/etc/npmrc", ".asdf/installs/nodejs/22/etc/npmrc", ".netrc",
        ".config/gcloud/credentials.db",
    ]  # fmt: skip
    host = tmp_path / "host"
    for path in (*shown, *hidden, "work/script.py"):
        (host / "home/me" / path).parent.mkdir(parents=True, exist_ok=True)
        (host / "home/me" / path).write_text("")
    steps = mount_plan([], hidden=[], home="/home/me", host=str(host))
    assert [path for path in shown if not is_seen(steps, host, f"/home/me/{path}")] == []
    assert [path for path in hidden if is_seen(steps, host, f"/home/me/{path}")] == []
    assert is_seen(steps, host, "/home/me/work/script.py")


def test_environments_are_visible_in_hidden_and_inaccessible_directories(tmp_path: Path) -> None:
    host = tmp_path / "host"
    environments = ["/srv/shut/python", "/home/me/.secret/env", "/tmp/env", "/usr"]
    for path in environments:
        (host / path[1:] / "bin").mkdir(parents=True)
        (host / path[1:] / "pip.conf").write_text("")
    plant(host, "/srv/shut/data")
    for path in ("home/me", "srv/shut"):
        (host / path).chmod(0o700)
    steps = mount_plan([], hidden=[], home="/home/me", host=str(host), tools=environments)
    for path in environments:
        assert is_seen(steps, host, f"{path}/bin/python")
        assert is_seen(steps, host, f"{path}/pip.conf") == (path == "/usr")
    assert not is_seen(steps, host, "/srv/shut/data/secret")


def test_what_a_home_gets_later_is_not_visible(tmp_path: Path) -> None:
    (tmp_path / "home/me/work").mkdir(parents=True)
    steps = mount_plan([], hidden=[], home="/home/me", host=str(tmp_path))
    assert is_seen(steps, tmp_path, "/home/me/work/file")
    assert not is_seen(steps, tmp_path, "/home/me/.netrc")
    assert ("seal", "", "/home/me", "") in steps, "a container's files in it would be lost"


def test_sealing_a_read_only_root_leaves_the_pod_s_mounts_writable(tmp_path: Path) -> None:
    (tmp_path / "home/me").mkdir(parents=True)
    mounts = [Mount("/s", "/tmp"), Mount("/s", "/home/me")]
    steps = mount_plan(mounts, hidden=[], home="/home/me", host=str(tmp_path), read_only_root=True)
    sealed = {path for kind, _, path, _ in steps if kind == "seal"}
    assert sealed == {"/", "/root", "/run"}


# --- executed plans -------------------------------------------------------------------------


@pytest.fixture(params=SANDBOXES)
def level(request: pytest.FixtureRequest) -> IsolationLevel:
    """Each level with a sandbox."""
    level: IsolationLevel = request.param
    return level


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory that no container hides: not in /tmp."""
    candidates = ("/srv", "/opt", os.path.expanduser("~"))
    parent = next(path for path in candidates if os.access(path, os.W_OK))
    created = Path(tempfile.mkdtemp(prefix="batholith-rootfs-", dir=parent))
    created.chmod(0o755)
    try:
        yield created
    finally:
        shutil.rmtree(created)


async def execute(
    base: Path, steps: Sequence[Step], level: IsolationLevel, script: str
) -> tuple[ExitRecord, list[str]]:
    """Return the exit record of *script* and its output."""
    sandbox = Sandbox(base, level)
    run_dir = sandbox.prepare(script, steps=steps, can_stage=True)
    ended = await ContainerProcess(
        run_dir, ShimProcess.of(run_dir.start()), clock=SystemClock()
    ).wait()
    assert run_dir.is_valid == (ended.reason != "HostChanged")
    return ended, sandbox.lines()


@pytest.mark.process
async def test_data_directory_whose_name_begins_like_a_hidden_one_is_hidden(
    tmp_path: Path, level: IsolationLevel
) -> None:
    if os.geteuid():
        pytest.skip("only root can create a directory in /")
    parent = Path(tempfile.mkdtemp(prefix="runner-", dir="/"))
    try:
        os.chmod(parent, 0o755)
        plant(parent, "data")
        (parent / "data" / SECRET).write_text(SECRET)
        data = str(parent / "data")
        steps = mount_plan([], hidden=[data], home="/no-home", tools=runs.PYTHON_PREFIXES)
        script = f"cat {data}/{SECRET} || echo hidden"
        ended, lines = await execute(tmp_path, steps, level, script)
    finally:
        shutil.rmtree(parent)
    assert ended.code == 0
    assert SECRET not in lines
    assert "hidden" in lines


@pytest.mark.process
async def test_entries_that_are_removed_after_the_plan_are_skipped(
    base: Path, level: IsolationLevel
) -> None:
    home, outside = base / "home", base / "outside"
    for path in (home / "removed", home / "replaced", home / "kept", outside):
        path.mkdir(parents=True)
    (home / "file").write_text("")
    (outside / SECRET).write_text("")
    steps = mount_plan([], hidden=[], home=str(home), tools=runs.PYTHON_PREFIXES)
    (home / "removed").rmdir()
    (home / "file").unlink()
    if level is IsolationLevel.UNSHARE:  # bubblewrap follows links
        (home / "replaced").rmdir()
        (home / "replaced").symlink_to(outside)
    ended, lines = await execute(base, steps, level, f"ls {home}; ls {home}/replaced")
    assert (ended.code, ended.message) in ((0, ""), (2, ""))
    assert "kept" in lines
    assert not {"removed", "file", SECRET} & {*lines}


@pytest.mark.process
async def test_mount_point_that_is_removed_after_the_plan_makes_it_outdated(
    base: Path, level: IsolationLevel
) -> None:
    volume = make_world_writable(base / "volume")
    (base / "project" / "out").mkdir(parents=True)
    mounts = [Mount(str(volume), str(base / "project" / "out"))]
    steps = mount_plan(mounts, hidden=[], home="/no-home", tools=runs.PYTHON_PREFIXES)
    (base / "project" / "out").rmdir()
    ended, lines = await execute(base, steps, level, "echo started")
    assert (ended.code, ended.reason, lines) == (128, "HostChanged", [])
    assert str(base / "project" / "out") in ended.message
    shutil.rmtree(base / "pods")
    steps = mount_plan(mounts, hidden=[], home="/no-home", tools=runs.PYTHON_PREFIXES)
    ended, lines = await execute(base, steps, level, "echo started")
    assert (ended.code, lines) == (0, ["started"])


@pytest.mark.process
async def test_home_is_read_only_but_for_the_pod_s_mounts(
    base: Path, level: IsolationLevel
) -> None:
    (base / "home").mkdir()
    volume = make_world_writable(base / "volume")
    mounts = [Mount(str(volume), str(base / "home" / "out"))]
    steps = mount_plan(mounts, hidden=[], home=str(base / "home"), tools=runs.PYTHON_PREFIXES)
    script = f"cd {base}/home; touch out/file; touch new || echo refused; touch /tmp/x /run/x"
    ended, lines = await execute(base, steps, level, script)
    assert ended.code == 0, lines
    assert "refused" in lines
    assert os.listdir(volume) == ["file"]


async def start_with_host_path(
    base: Path, level: IsolationLevel, volume: MountedVolume, sub_path: str, script: str
) -> tuple[ExitRecord, list[str]]:
    """Run *script* with the volume at /v."""
    mounts = [{"name": "v", "mountPath": "/v", "subPath": sub_path}]
    pod = decode_pod(manifest("p", container(volumeMounts=mounts)))
    found = container_mounts(pod.spec.containers[0], {"v": volume}, {}, owner=None)
    steps = mount_plan(found, hidden=[], home="/no-home", tools=runs.PYTHON_PREFIXES)
    return await execute(base, steps, level, script)


@pytest.mark.process
async def test_host_path_that_is_replaced_by_a_link_after_its_check_leads_nowhere(
    base: Path, level: IsolationLevel
) -> None:
    (base / "shared" / "mine").mkdir(parents=True)
    plant(base, "outside")
    volume = MountedVolume(base / "shared", inside="mine")
    (base / "shared" / "mine").rmdir()
    (base / "shared" / "mine").symlink_to(base / "outside")
    ended, lines = await start_with_host_path(base, level, volume, "", "ls /v")
    assert ended.code == 128
    assert "mine" in ended.message
    assert SECRET not in lines


@pytest.mark.process
async def test_sub_path_of_a_host_path_stays_in_it(base: Path, level: IsolationLevel) -> None:
    (base / "shared" / "mine" / "deep").mkdir(parents=True)
    (base / "shared" / "mine" / "deep" / "file").write_text("")
    plant(base, "shared/other")
    (base / "shared" / "mine" / "out").symlink_to("../other")
    volume = MountedVolume(base / "shared", inside="mine", read_only=True)
    ended, lines = await start_with_host_path(base, level, volume, "deep", "ls /v; touch /v/x")
    assert ended.code == 1
    assert lines[0] == "file"
    assert os.listdir(base / "shared" / "mine" / "deep") == ["file"]
    shutil.rmtree(base / "pods")
    ended, lines = await start_with_host_path(base, level, volume, "out", "ls /v")
    assert (ended.code, ended.reason) == (128, "StartError")
    assert "'out'" in ended.message


@pytest.mark.process
async def test_home_with_thousands_of_entries_is_shown(base: Path, level: IsolationLevel) -> None:
    home = base / "home"
    (home / ".local" / "bin").mkdir(parents=True)
    (home / "removed").mkdir()
    plant(home, ".ssh")
    (home / "link").symlink_to("file0")
    for number in range(3_100):  # bubblewrap takes 9,000 arguments, three for each
        (home / f"file{number}").touch()
    volume = make_world_writable(base / "volume")
    mounts = [Mount(str(volume), str(home / "out"))]
    steps = mount_plan(mounts, hidden=[], home=str(home), tools=runs.PYTHON_PREFIXES)
    (home / "removed").rmdir()
    script = f"cd {home}; touch out/file; touch file0 || touch new || ls -A | wc -l; ls -A .??*"
    ended, lines = await execute(base, steps, level, script)
    assert (ended.code, os.listdir(volume)) == (0, ["file"]), (ended, lines)
    assert {"3103", "bin"} <= {*lines}
    assert SECRET not in lines
