"""The command that connects the network namespace of an embedded cluster's node."""

import os
from typing import Annotated

import typer

from ..local.agent.runtime.process_id import die_with_parent
from ..local.network.node_namespace import execute_pasta
from ..local.supervisor.supervisor import PARENT, READY_FD
from .version import Version


def pasta(
    holder: Annotated[int, typer.Option(help="Process in the namespace.")],
    api_port: Annotated[int, typer.Option(help="Port of the API server.")],
    version: Version = False,
) -> None:
    """Connect the network namespace of an embedded cluster's node."""
    parent, ready = os.environ.get(PARENT), os.environ.get(READY_FD)
    if parent is None or ready is None:
        typer.echo("batholith pasta: only `batholith up` can start it", err=True)
        raise typer.Exit(2)
    die_with_parent(int(parent))
    execute_pasta(holder, api_port=api_port, ready=int(ready))
