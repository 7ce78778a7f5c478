"""``--version``."""

from typing import Annotated

import typer


def _version(requested: bool) -> None:
    if requested:
        from importlib import metadata

        typer.echo(f"batholith {metadata.version('batholith')}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
]
