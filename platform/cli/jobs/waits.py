"""Prints what a job that waits competes with, for ``why``."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .output import Column, Table, cell_text
from .views import iso

if TYPE_CHECKING:
    from ...wire.waits import Competition, FreeAmount, JobAhead, JobHolder, OtherJob

HIDDEN = "a job of another namespace"
"""A job that the user may not see."""

_FREE_COLUMNS: "list[Column[FreeAmount]]" = [
    Column("RESOURCE", lambda row: row.resource),
    Column("ASKED", lambda row: row.asked),
    Column("FREE", lambda row: row.free),
    Column("OF", lambda row: row.total),
    Column("WHERE", lambda row: _where(row)),
]
_AHEAD_COLUMNS: "list[Column[JobAhead]]" = [
    Column("JOB", lambda row: job_text(row.job)),
    Column("ASKED", lambda row: amounts_text(row.requests)),
]
_HOLDER_COLUMNS: "list[Column[JobHolder]]" = [
    Column("JOB", lambda row: job_text(row.job)),
    Column("HOLDS", lambda row: amounts_text(row.held)),
    Column("NODES", lambda row: row.nodes),
    Column("UNTIL", lambda row: _until(row)),
]


def competition_lines(found: "Competition") -> Iterator[str]:
    """Yield what is free of what a job asks for, the jobs before it, and those that hold it."""
    if found.free:
        yield from ("", *Table(_FREE_COLUMNS).lines(found.free))
    if found.ahead:
        yield from ("", "Before it in its queue:", *Table(_AHEAD_COLUMNS).lines(found.ahead))
        yield from _more(found.position - 1 - len(found.ahead))
    if found.holders:
        title = "Who holds what it lacks:"
        yield from ("", title, *Table(_HOLDER_COLUMNS).lines(found.holders))
        yield from _more(found.more_holders)


def unknown_competition_lines(error: str, in_process: bool) -> Iterator[str]:
    """Yield why that is not known; *in_process*: the command asks with the user's rights."""
    advice = (
        "; `batholith why` without --kubernetes has it from a REST API of the cluster, which asks"
        " with its own rights"
    )
    yield ""
    yield f"What it competes with is not known: {cell_text(error)}{advice if in_process else ''}"


def _more(count: int) -> Iterator[str]:
    if count > 0:
        yield f"and {count} more"


def _where(row: "FreeAmount") -> str:
    if row.queue:
        return f"queue {row.queue}"
    group = f"nodes {row.group}" if row.group else "nodes"
    return f"{group}: {row.usable} of {row.nodes} usable, at most {row.largest} on one"


def job_text(job: "OtherJob | None") -> str:
    """Return the name of a job, if the user may see it."""
    if job is None:
        return HIDDEN
    kind = "" if job.kind == "jobs" else f"{job.kind}/"
    return f"{job.namespace}/{kind}{job.name}"


def amounts_text(amounts: dict[str, str]) -> str:
    """Return amounts of resources."""
    return ", ".join(f"{amount} {resource}" for resource, amount in amounts.items())


def _until(row: "JobHolder") -> str:
    return "not known" if row.until is None else f"{iso(row.until)} (by {row.basis})"
