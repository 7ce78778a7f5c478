"""Help texts of the command line."""

import pytest
from typer.testing import CliRunner

from batholith.cli.main import app


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("up", "$XDG_DATA_HOME/batholith"),
        ("up", "at least 16"),
        ("controllers", "in-cluster"),
        ("agent", "at least 16"),
    ],
)
def test_help_shows_computed_defaults(command: str, expected: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert expected in result.output
