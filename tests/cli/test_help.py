"""Help texts of the command line, and what they load."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from batholith.cli.command_table import TABLE, Kind, new_program
from batholith.cli.main import app
from batholith.cli.program import NONE, called


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


COMPONENTS = [row.name for row in TABLE if row.kind in (Kind.COMPONENT, Kind.GO)]


def _help(program: typer.Typer) -> str:
    return CliRunner().invoke(program, ["--help"], env={"COLUMNS": "120"}).output


def test_the_list_of_commands_is_the_same_without_importing_them() -> None:
    assert _help(new_program(NONE)) == _help(app)


@pytest.mark.parametrize(
    ("arguments", "environment", "name"),
    [
        (["batholith", "jobs", "-A"], {}, "jobs"),
        (["batholith"], {}, NONE),
        (["batholith", "--help"], {}, "--help"),
        (["batholith"], {"_BATHOLITH_COMPLETE": "c", "COMP_WORDS": "batholith why tr"}, "why"),
        (["batholith"], {"_BATHOLITH_COMPLETE": "c", "_TYPER_COMPLETE_ARGS": "batholith "}, NONE),
        (["batholith", "job"], {"COMP_WORDS": "batholith why tr"}, "job"),
    ],
)
def test_the_command_that_is_called_is_known_before_the_program_is_built(
    arguments: list[str], environment: dict[str, str], name: str
) -> None:
    assert called(arguments, environment) == name


@pytest.mark.process
def test_the_help_loads_neither_a_command_nor_its_packages() -> None:
    heavy = [
        "httpx",
        "yaml",
        "msgspec",
        "pydantic",
        "asyncio",
        "batholith.cli.jobs",
        "batholith.cli.cluster",
    ]
    code = (
        "import sys\nfrom batholith.cli.program import main\nsys.argv = ['batholith', '--help']\n"
        f"try:\n    main()\nfinally:\n    print([m for m in {heavy} if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert result.stdout.endswith("[]\n")


@pytest.mark.process
def test_a_command_loads_no_other_command_line(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom batholith.cli.program import main\nsys.argv = ['batholith', 'jobs']\n"
        "try:\n    main()\nfinally:\n"
        "    print([m for m in ('httpx', 'click', 'pydantic', 'rich') if m in sys.modules])"
    )
    nowhere = {"XDG_DATA_HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "absent")}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | nowhere
    )
    assert result.stdout == "['httpx']\n", result.stderr


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
