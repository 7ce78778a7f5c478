"""The flag `--mount` of `up`, and how it reaches the agent."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batholith.cli.embedded import EmbeddedCluster, Options
from batholith.cli.main import app
from batholith.local.agent.volumes.host_dirs import HostDir
from batholith.local.supervisor.datadir import DataDir


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mount", "/"], "--mount /: the root directory"),
        (["--mount", "{data}"], "the data directory"),
        (["--mount", "{parent}:ro"], "the data directory"),
        (["--mount", "/no/such/directory"], "--mount /no/such/directory: No such file"),
        (["--mount", "/usr", "--simulate", "2"], "--mount has no effect on simulated pods"),
    ],
)
def test_dangerous_mounts_are_refused_before_anything_starts(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    given = [each.format(data=data, parent=tmp_path) for each in arguments]
    result = CliRunner().invoke(app, ["up", "--data-dir", str(data), *given])
    assert result.exit_code == 1
    assert message in result.output
    assert list(data.iterdir()) == []


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DataDir]:
    """A locked data directory."""
    data = DataDir(tmp_path / "data")
    data.lock()
    yield data
    data.unlock()


@pytest.mark.process
def test_each_start_of_the_agent_gets_the_permitted_directories(data: DataDir) -> None:
    directories = (HostDir("/usr"), HostDir("/opt", read_only=True))
    with EmbeddedCluster(data, Options(port=0, api_port=0, host_dirs=directories)) as cluster:
        (agent,) = (spec for spec in cluster.components() if spec.name == "agent")
    given = [value for flag, value in zip(agent.arguments, agent.arguments[1:], strict=False)
             if flag == "--mount"]  # fmt: skip
    assert given == ["/usr", "/opt:ro"]
    assert tuple(map(HostDir.parse, given)) == directories
