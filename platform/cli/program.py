"""The program ``batholith``. A process imports only the command that is called, to start fast.

An embedded cluster consists of ten such processes: all commands would be a third of their imports.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

from ..kube.gc_tuning import raise_gc_thresholds
from .command_table import new_program

NONE = "-"
"""No command has this name."""


def main(prog_name: str | None = None) -> None:
    """Run the command that the arguments name."""
    raise_gc_thresholds()  # before the imports, which create most of the objects of a small cluster
    _omit_command_of_httpx()
    new_program(called(sys.argv, os.environ))(prog_name=prog_name)


def _omit_command_of_httpx() -> None:
    """Keep httpx from importing its own command line, with click and rich.

    That is almost half of its import. It does without if the module lacks the function.
    """
    name = "httpx._main"
    sys.modules.setdefault(name, ModuleType(name))


def called(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the name of the command that is called, or whose arguments the shell completes.

    Shells give the line that they complete in a variable.
    """
    line = environment.get("COMP_WORDS") or environment.get("_TYPER_COMPLETE_ARGS")
    is_completed = any(name.endswith("_COMPLETE") for name in environment if name[:1] == "_")
    given = line.split() if is_completed and line else arguments
    return given[1] if len(given) > 1 else NONE
