"""Encode commands and their results, as :mod:`..schemas.commands` describes them."""

from collections.abc import Sequence

import msgspec

from ...store.commands import CommandRecord
from ..commands.orders import command_fields
from ..commands.waits import Progress
from ..problems import describe
from .bulk_commands import TargetResult


def encode_command(record: CommandRecord) -> bytes:
    """Encode a row of the store as a ``CommandOut``."""
    return msgspec.json.encode(command_fields(record))


def encode_result(progress: Progress) -> bytes:
    """Encode the progress of a command as a ``CommandResult``."""
    return msgspec.json.encode(
        {
            "command": command_fields(progress.record),
            "phase": progress.phase,
            "reached": progress.reached,
            "detail": progress.detail,
        }
    )


def encode_results(results: Sequence[TargetResult]) -> bytes:
    """Encode the results of a bulk command as ``BulkResults``."""
    rows = [
        {
            "namespace": each.target.namespace,
            "name": each.target.name,
            "status": each.status,
            "command": None if each.record is None else command_fields(each.record),
            "problem": None if each.problem is None else describe(each.problem),
        }
        for each in results
    ]
    return msgspec.json.encode({"results": rows})


def encode_page(records: Sequence[CommandRecord], *, next_cursor: str | None) -> bytes:
    """Encode a page of commands as a ``CommandList``."""
    items = [command_fields(record) for record in records]
    return msgspec.json.encode({"items": items, "next_cursor": next_cursor})
