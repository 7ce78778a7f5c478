"""The results of commands, as responses contain them."""

from collections.abc import Sequence

from ..store.commands import CommandRecord
from ..wire.commands import BulkResult, BulkResults, CommandPage, CommandResult
from .bulk_commands import TargetResult
from .command_waits import Progress
from .problems import describe
from .schemas.commands import command_of


def result_of(progress: Progress) -> CommandResult:
    """Convert the progress of a command."""
    return CommandResult(
        command=command_of(progress.record),
        phase=progress.phase,
        reached=progress.reached,
        detail=progress.detail,
    )


def results_of(results: Sequence[TargetResult]) -> BulkResults:
    """Convert the results of a bulk command."""
    return BulkResults(
        results=[
            BulkResult(
                namespace=each.target.namespace,
                name=each.target.name,
                status=each.status,
                command=None if each.record is None else command_of(each.record),
                problem=None if each.problem is None else describe(each.problem),
            )
            for each in results
        ]
    )


def page_of(records: Sequence[CommandRecord], *, next_cursor: str | None) -> CommandPage:
    """Convert a page of commands."""
    return CommandPage(items=[command_of(record) for record in records], next_cursor=next_cursor)
