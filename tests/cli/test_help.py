"""Help texts of the command line, and what they load."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from batholith.cli.component_commands import COMPONENTS
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


@pytest.mark.process
def test_the_help_loads_neither_the_client_nor_its_packages() -> None:
    heavy = ["httpx", "yaml", "aiohttp", "sqlalchemy", "fastapi", "batholith.client"]
    code = f"import sys, batholith.cli.main; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert result.stdout == "[]\n"


@pytest.mark.process
@pytest.mark.parametrize("name", COMPONENTS)
def test_a_component_loads_no_command_but_its_own(name: str) -> None:
    code = (
        "import sys\nfrom batholith.cli.program import main\n"
        f"sys.argv = ['batholith', {name!r}, '--help']\n"
        "try:\n    main()\nfinally:\n"
        "    print([m for m in sys.modules if m in ('batholith.cli.main', 'batholith.cli.jobs')])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert f"Usage: batholith {name} " in result.stdout
    assert result.stdout.endswith("[]\n")
