"""What the command line tells about itself."""

import pytest
from typer.testing import CliRunner

from batholith.cli.main import app


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("up", "$XDG_DATA_HOME/batholith"),
        ("up", "at least 16"),
        ("controllers", "in-cluster"),
        ("agent", "at least 16"),
    ],
)
def test_defaults_that_are_worked_out_are_told(command: str, told: str) -> None:
    answer = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert answer.exit_code == 0
    assert told in answer.output
