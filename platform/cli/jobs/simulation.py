"""Prints what would become of a job, for ``simulate`` and ``submit --test-only``."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from .output import Column, Output, Table, emit, show_data, show_fields
from .shared import FAILED
from .views import explanation_fields, iso

if TYPE_CHECKING:
    from ...client import Client
    from ...wire.simulation import NodePods, Simulation

_NODE_COLUMNS: "list[Column[NodePods]]" = [
    Column("NODE", lambda row: row.node),
    Column("PODS", lambda row: row.pods),
]


def print_simulation(
    client: "Client", manifest: Mapping[str, Any], output: str, *, namespace: str | None = None
) -> None:
    """Print what would become of the job of *manifest*.

    Raises:
        typer.Exit: it could not start even if nothing else ran.
    """
    found = client.jobs.simulate(manifest, namespace=namespace)
    if output == Output.TABLE:
        _show(found)
    else:
        show_data(found, Output(output))
    if found.impossible:
        raise typer.Exit(FAILED)


def _show(found: "Simulation") -> None:
    show_fields(
        [
            ("Result", found.summary),
            ("Start", _start(found)),
            ("Next", found.next_step),
        ]
    )
    if found.nodes:
        emit(["", *Table(_NODE_COLUMNS).lines(found.nodes)])
    if found.explanation is not None:
        emit([""])
        show_fields(explanation_fields(found.explanation))
    emit(_changes(found))


def _start(found: "Simulation") -> str:
    if found.starts_now:
        return "when that is met" if found.assumed else "now"
    if found.impossible:
        return "never, also if nothing else ran"
    if found.expected_start is not None:
        return f"expected {iso(found.expected_start)} (by {found.start_basis})"
    if found.not_before is not None:
        return f"not before {iso(found.not_before)}"
    return "unknown"


def _changes(found: "Simulation") -> Iterator[str]:
    if found.changes:
        yield from (
            "",
            "Changes that were tried:",
            *(f"  {each.summary}" for each in found.changes),
        )
    if not found.all_changes_tried:
        yield "  There was no time for others."
