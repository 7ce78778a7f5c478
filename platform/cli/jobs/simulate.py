"""``simulate``: when a script, a command or a manifest would start."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..submit.errors import SubmitError
from .simulation import print_simulation
from .submission import (
    Flags,
    ProgramArgument,
    Wrap,
    check_hook,
    each_problem_on_its_line,
    prepare,
    read_program,
    with_flags,
)

if TYPE_CHECKING:
    from ...client import Client


@with_flags
def simulate(
    client: "Client",
    invocation: typer.Context,
    program: ProgramArgument = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", help="Manifest of a Volcano job, instead of a script; -: stdin."
        ),
    ] = None,
    output_format: Annotated[
        Literal["table", "json", "yaml"], typer.Option("--format", "-o", help="Of the result.")
    ] = "table",
    wrap: Wrap = None,
    *,
    flags: Flags,
) -> None:
    """Print when a job would start and where, or what would let it; nothing is created."""
    with each_problem_on_its_line():
        if file is not None:
            _check_alone(program, wrap, flags)
            manifest, namespace = _read_manifest(file), invocation.params["namespace"]
        else:
            script, found = read_program(invocation, program or [], wrap)
            job = prepare(client, invocation, script, found, flags)
            check_hook(job.hook, waits=True)
            manifest, namespace = job.manifest, None
    print_simulation(client, manifest, output_format, namespace=namespace)


def _check_alone(program: list[str] | None, wrap: str | None, flags: Flags) -> None:
    """Check that nothing else describes a job.

    Raises:
        SubmitError: a script, a command or an option does.
    """
    given = [f"--{name}" for name, value in flags.items() if value]
    if program or wrap is not None:
        given.insert(0, "a script, a command or --wrap")
    if given:
        raise SubmitError([f"--file has the whole job: leave out {', '.join(given)}"])


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return the only object of a file in YAML or JSON.

    Raises:
        SubmitError: there is none, or the file cannot be read.
    """
    import yaml

    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        objects = [each for each in yaml.safe_load_all(text) if each is not None]
    except UnicodeDecodeError:
        raise SubmitError([f"{path} is not UTF-8"]) from None
    except OSError as error:
        raise SubmitError([f"cannot read {path}: {error.strerror}"]) from None
    except yaml.YAMLError as error:
        raise SubmitError([f"{path} is not YAML: {error}"]) from None
    if len(objects) != 1 or not isinstance(objects[0], dict):
        raise SubmitError([f"{path} does not contain one object, but {len(objects)}"])
    manifest: dict[str, Any] = objects[0]
    return manifest
