"""``usage`` and ``rerun``: what jobs have used, and jobs that run again."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .connection import complete_queues, find_job, parse_since
from .output import Column, Output, OutputOption, show, show_data
from .shared import NOT_FOUND, CommandFailedError
from .submission import DryRun, Format, Submission, Wait, create

if TYPE_CHECKING:
    from ...client import Client
    from ...wire.history import JobHistory

_GIB = 2**30


def usage(
    client: "Client",
    by: Annotated[
        Literal["queue", "user", "account", "namespace"], typer.Option(help="Rows.")
    ] = "queue",
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", autocompletion=complete_queues, help="Only this.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only this.")] = None,
    account: Annotated[str | None, typer.Option(help="Only this.")] = None,
    since: Annotated[
        str, typer.Option(help="A duration such as 90m, 12h or 7d, or a date.")
    ] = "7d",
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the resources that pods have used: requests times seconds, by queue, user or account."""
    found = client.history.usage(
        by,
        start=parse_since(since, datetime.now(UTC)),
        queue=queue,
        user=user,
        account=account,
    )
    if output in (Output.JSON, Output.YAML):
        show_data(found, output)
        return
    totals = found.totals()
    resources = sorted({resource for total in totals.values() for resource in total})
    columns = [
        Column[tuple[str, dict[str, float]]](by.upper(), lambda row: row[0]),
        *(_resource_column(each) for each in resources),
    ]
    show(sorted(totals.items()), columns, output, name=lambda row: row[0])
    if not all(point.complete for series in found.series for point in series.points):
        typer.echo(
            "batholith: usage may be missing: at times not all pods were observed, such as before"
            " the history began",
            err=True,
        )


def _resource_column(resource: str) -> "Column[tuple[str, dict[str, float]]]":
    unit, title = (_GIB, "MEMORY GIB") if resource == "memory" else (1, resource.upper())
    return Column(f"{title} SECONDS", lambda row: round(row[1].get(resource, 0.0) / unit, 1))


def rerun(
    client: "Client",
    name: Annotated[str, typer.Argument(metavar="JOB", help="NAME or KIND/NAME.")],
    wait: Wait = False,
    dry_run: DryRun = False,
    output_format: Format = "yaml",
) -> None:
    """Submit a job again under a new name, also one that was deleted."""
    from ...wire.renewal import new_number, renewed

    manifest = _manifest_of(client, name)
    create(
        client,
        Submission(renewed(manifest, number=new_number())),
        dry_run=dry_run,
        wait=wait,
        output_format=output_format,
    )


def _manifest_of(client: "Client", name: str) -> dict[str, Any]:
    """Return the manifest of a job: of the existing one, else what the history has of it.

    Raises:
        CommandFailedError: there is none, or the history does not have its spec.
    """
    from ...client.errors import NotFoundError

    try:
        return find_job(client, name).manifest()
    except NotFoundError:
        pass
    except CommandFailedError as error:
        if error.code != NOT_FOUND:
            raise
    kind, _, base = name.rpartition("/")
    records = client.history.list(name=base, kind=[kind] if kind else None)
    oldest = datetime.min.replace(tzinfo=UTC)
    latest = max(records, key=lambda each: each.created_at or oldest, default=None)
    if latest is None:
        raise CommandFailedError(f"no job {name!r} exists or is in the history", NOT_FOUND)
    return _recorded_manifest(client.history.get(latest.uid))


def _recorded_manifest(recorded: "JobHistory") -> dict[str, Any]:
    from ...wire.renewal import recorded_manifest

    try:
        manifest = recorded_manifest(recorded)
    except ValueError as error:
        raise CommandFailedError(str(error)) from None
    typer.echo(
        f"batholith: {recorded.kind}/{recorded.name} was deleted: annotations, such as a time"
        " limit, are not in the history",
        err=True,
    )
    return manifest
