"""Commands reject a data directory, lock, token or key that other users control."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batholith.cli.main import app
from batholith.local.supervisor import kubeconfig, pki, tokens
from batholith.local.supervisor.datadir import DataDir


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    """A data directory as left by a stopped cluster."""
    data = DataDir(tmp_path / "data")
    data.lock()
    data.unlock()
    data.cluster_db.touch(mode=0o600)
    data.up_json.touch(mode=0o600)
    known = tokens.ensure(data.tokens)
    ca = pki.ensure(data.pki).ca_data
    for user, path in (("admin", data.kubeconfig), ("agent", data.pki / "agent.kubeconfig")):
        access = kubeconfig.ClusterAccess(
            server="https://127.0.0.1:1", ca=ca, user=user, token=known[user]
        )
        kubeconfig.write(path, access)
    return data


Command = Callable[[DataDir], list[str]]


def on_data_dir(*arguments: str) -> Command:
    return lambda data: [*arguments, "--data-dir", str(data.root)]


def with_kubeconfig(*arguments: str) -> Command:
    return lambda data: [*arguments, "--kubeconfig", str(data.kubeconfig)]


def api_of(data: DataDir) -> list[str]:
    return [
        *with_kubeconfig("api", "--listen-address", "127.0.0.1:0")(data),
        "--store",
        "sqlite://",
    ]


def agent_of(data: DataDir) -> list[str]:
    return ["agent", "--data-dir", str(data.root), "--pki-dir", str(data.pki),
            "--kubeconfig", str(data.pki / "agent.kubeconfig")]  # fmt: skip


up = on_data_dir("up", "--port", "0", "--api-port", "0")
down, status = on_data_dir("down"), on_data_dir("status")
apiserver = on_data_dir("apiserver", "--listen-address", "127.0.0.1:0")

OPENED: dict[str, list[Command]] = {
    ".": [up, on_data_dir("up", "--detach"), down, status, apiserver, agent_of],
    "lock": [up, on_data_dir("up", "--detach"), down],
    "up.json": [up, down, status],
    "up.log": [on_data_dir("up", "--detach")],
    "tokens.json": [up, apiserver],
    "pki": [up, apiserver],
    "pki/ca.key": [up, apiserver],
    "pki/agent.key": [up, apiserver, agent_of],
    "pods": [up, agent_of],
    "cluster.db": [apiserver],
    "kubeconfig": [
        up,
        apiserver,
        with_kubeconfig("controllers"),
        with_kubeconfig("scheduler"),
        api_of,
    ],
    "pki/agent.kubeconfig": [up, agent_of],
}
CASES = [
    pytest.param(
        name,
        command,
        id=f"{name}-{'-'.join(command(DataDir(Path('/')))[:2])}",
        # The database is opened by the API server itself.
        marks=[pytest.mark.cluster] if name == "cluster.db" else [],
    )
    for name, commands in OPENED.items()
    for command in commands
]


def assert_refused(command: Command, data: DataDir, fault: str, path: Path) -> None:
    outcome = CliRunner().invoke(app, command(data))
    assert (outcome.exit_code, outcome.stdout) == (1, ""), outcome.output
    stderr = " ".join(outcome.stderr.split())
    assert f"cannot use {path}: {fault}" in stderr
    assert "to repair:" in stderr


@pytest.mark.parametrize(("name", "command"), CASES)
def test_symbolic_links_are_rejected(data: DataDir, name: str, command: Command) -> None:
    path = data.root / name
    moved = data.root.with_name("moved")
    if path.exists():
        path.rename(moved)
    path.symlink_to(moved)
    assert_refused(command, data, "it is a symbolic link", path)


@pytest.mark.parametrize(("name", "command"), CASES)
def test_files_writable_by_others_are_rejected(data: DataDir, name: str, command: Command) -> None:
    path = data.root / name
    if path.is_dir():
        (path / "prepared").touch()
        path.chmod(0o777)
    else:
        path.touch()
        path.chmod(0o666)
    mode = path.stat().st_mode & 0o777
    assert_refused(command, data, f"its mode 0{mode:o} lets other users change", path)


@pytest.mark.parametrize("command", OPENED["."])
def test_a_directory_of_another_user_is_rejected_even_by_root(
    data: DataDir, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert_refused(command, data, "it belongs to ", data.root)


@pytest.mark.parametrize("name", ["tokens.json", "pki/ca.key", "lock", "kubeconfig"])
def test_secrets_readable_by_others_are_rejected(data: DataDir, name: str) -> None:
    (data.root / name).chmod(0o640)
    assert_refused(up, data, "its mode 0640 lets other users read it", data.root / name)


@pytest.mark.parametrize("command", [up, down, status, apiserver])
def test_a_directory_readable_by_others_is_rejected(data: DataDir, command: Command) -> None:
    data.root.chmod(0o755)
    assert_refused(command, data, "its mode 0755 lets other users read it", data.root)


def test_the_demo_rejects_an_unsafe_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    outcome = CliRunner().invoke(app, ["demo"])
    assert outcome.exit_code == 1
    assert f"every user may rename what is in {tmp_path}" in outcome.stderr


def test_directories_of_older_versions_are_accepted(tmp_path: Path) -> None:
    from batholith.local.agent.pods.records import create_dirs

    root = tmp_path / "agent"
    root.mkdir(mode=0o755)  # as the umask had it
    for name in ("pods", "logs", "volumes"):
        (root / name).mkdir(mode=0o700)
    create_dirs(root)
    assert root.stat().st_mode & 0o777 == 0o700


def test_a_crash_before_the_first_start_leaves_a_lockable_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataDir(tmp_path / "data")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fcntl.flock", crash)
    with pytest.raises(KeyboardInterrupt):
        data.lock()
    monkeypatch.undo()
    data.lock()
    data.unlock()
