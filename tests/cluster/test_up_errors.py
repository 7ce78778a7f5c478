"""Wrong arguments and early signals to ``batholith up``: one line of error text, no damage."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from support import embedded_cluster
from support.embedded_cluster import batholith, processes_of

from batholith.local.supervisor.datadir import DataDir

pytestmark = pytest.mark.process


def listing(directory: Path) -> tuple[list[str], int]:
    """Return the names in a directory, and its mode."""
    return [path.name for path in directory.iterdir()], directory.stat().st_mode & 0o777


@pytest.mark.parametrize("command", [["up"], ["up", "--detach"], ["status"], ["down"]])
async def test_file_as_data_directory_is_a_one_line_error(
    tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "file").touch()
    outcome = await batholith(*command, "--data-dir", str(tmp_path / "file"))
    assert "Traceback" not in outcome.err
    assert outcome.code in (1, 3)
    assert str(tmp_path / "file") in outcome.err + outcome.out


@pytest.mark.parametrize("path", ["/proc/none", "/etc/passwd/none"])
async def test_impossible_data_directory_is_named_with_the_reason(path: str) -> None:
    outcome = await batholith("up", "--data-dir", path)
    assert outcome.code == 1
    assert outcome.err.startswith(f"batholith up: cannot use the data directory {path}: ")
    assert "Errno" not in outcome.err


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    """A directory with other content, readable by other users."""
    tmp_path.chmod(0o755)
    (tmp_path / "thesis.tex").touch()
    return tmp_path


@pytest.mark.parametrize("command", [["up"], ["up", "--detach"], ["down"]])
async def test_directory_with_other_content_is_not_changed(
    thesis: Path, command: list[str]
) -> None:
    outcome = await batholith(*command, "--data-dir", str(thesis))
    assert (outcome.code, outcome.err.count("\n")) == (1, 1), outcome.err
    assert "not empty" in outcome.err
    assert listing(thesis) == (["thesis.tex"], 0o755)


def test_a_relative_data_home_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", "here")
    assert DataDir.default().root == tmp_path / ".local/share/batholith"


async def test_second_start_does_not_affect_the_first_one_and_its_log(tmp_path: Path) -> None:
    root = tmp_path / "a directory"
    async with embedded_cluster.embedded_cluster(root) as cluster:
        output = (root / "up.log").read_text()
        assert f"export KUBECONFIG='{root}/kubeconfig'" in output
        for how in (["--detach"], []):
            outcome = await batholith("up", *how, "--data-dir", str(root))
            assert (outcome.code, outcome.out) == (1, "")
            assert "already up" in outcome.err
        assert (root / "up.log").read_text() == output
        port = str(cluster.state.ports["kubernetes"])
        outcome = await batholith("up", "--data-dir", str(tmp_path / "other"), "--port", port)
        assert outcome.err == f"batholith up: Kubernetes API: port {port}: Address already in use\n"


async def test_every_command_reports_malformed_state_of_a_running_cluster(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    data.lock()
    data.up_json.write_text("{")
    output = (
        f"a cluster is up in {data.root}, but {data.up_json} is malformed and does not name "
        "its supervisor: stop `batholith up` manually\n"
    )
    for command in (["status"], ["down"], ["up"], ["up", "--detach"]):
        outcome = await batholith(*command, "--data-dir", str(data.root))
        assert (outcome.code, outcome.out) == (1, ""), command
        assert outcome.err == f"batholith {command[0]}: {output}"
    assert data.up_json.read_text() == "{"
    data.unlock()
    outcome = await batholith("status", "--data-dir", str(data.root))
    # Clusters in other directories are named after it.
    assert (outcome.code, outcome.out.splitlines()[0]) == (3, f"not up ({data.root})")
    outcome = await batholith("down", "--data-dir", str(data.root))
    assert (outcome.code, outcome.out.splitlines()[0]) == (0, f"nothing is running in {data.root}")
    assert not data.up_json.exists()


async def test_second_signal_does_not_shorten_the_shutdown(tmp_path: Path) -> None:
    command = ("up", "--data-dir", str(tmp_path), "--port", "0", "--api-port", "0")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "batholith.cli", *command), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert b"is up" in await process.stdout.readline()
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
        os.kill(process.pid, number)
        await asyncio.sleep(0.02)  # pending signals of the same number merge
    output = await process.stdout.read()
    assert await process.wait() == 0
    assert output.endswith(b"stopping: waiting for pods to terminate\nstopped\n")
    assert processes_of(tmp_path) == []
    assert "up.json" not in listing(tmp_path)[0]


async def test_malformed_tokens_file_is_named(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    data.lock()
    data.tokens.write_text('{"admin')
    data.tokens.chmod(0o600)
    data.unlock()
    outcome = await batholith("up", "--data-dir", str(data.root), "--port", "0", "--api-port", "0")
    assert (outcome.code, outcome.err.count("\n")) == (1, 1), outcome.err
    assert f"{data.tokens} is malformed" in outcome.err
