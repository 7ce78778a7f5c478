"""``batholith reservations``: what is reserved on nodes for jobs that wait."""

from typing import TYPE_CHECKING

import typer

from ...wire.waits import PURPOSES
from .output import Column, Output, OutputOption, show
from .views import iso
from .waits import amounts_text, job_text

if TYPE_CHECKING:
    from ...client import Client
    from ...wire.waits import Reservation


def reservations(client: "Client", output: OutputOption = Output.TABLE) -> None:
    """List what the scheduler has reserved on nodes for jobs that wait."""
    found = client.nodes.reservations()
    show(found.items, _COLUMNS, output, name=lambda row: job_text(row.job))
    if not found.is_complete:
        typer.echo("batholith: more is reserved than is shown", err=True)


def _purpose(row: "Reservation") -> str:
    if row.purpose == "start":
        return "its start is planned"
    return PURPOSES.get(row.purpose, row.purpose)


def _nodes(row: "Reservation") -> str:
    return "; ".join(f"{each.node}: {amounts_text(each.amounts)}" for each in row.nodes)


_COLUMNS: "list[Column[Reservation]]" = [
    Column("JOB", lambda row: job_text(row.job)),
    Column("QUEUE", lambda row: row.queue, wide=True),
    Column("NODES", lambda row: len(row.nodes)),
    Column("PURPOSE", _purpose),
    Column("START", lambda row: iso(row.start)),
    Column("UNTIL", lambda row: iso(row.until), spare=True),
    Column("RESERVED", _nodes, wide=True),
]
