"""The ``commands`` table: the history of commands issued through the REST API.

Every replica of the API may write it. A row is inserted before the Command object is created, so a
crash in between leaves an open row, never a Command without a row. The id of a row is that of the
operation of the REST API, so that a repeated request finds its row.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from ..wire.commands import CommandState
from .database import Database, StoreUnavailableError, insert_if_absent
from .grouping import GroupedWrites

METADATA = sa.MetaData()
JOBS_KIND = "jobs"
"""Kind of commands for Volcano jobs."""

COMMANDS = sa.Table(
    "commands",
    METADATA,
    sa.Column("id", sa.String(36), primary_key=True),
    sa.Column("namespace", sa.String(63), nullable=False),
    sa.Column("job", sa.String(253), nullable=False),
    sa.Column("job_uid", sa.String(36), nullable=False),
    sa.Column("action", sa.String(32), nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("command", sa.String(253), nullable=False),
    sa.Column("command_uid", sa.String(36), nullable=False, default=""),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("detail", sa.Text, nullable=False, default=""),
    sa.Column("received_at", sa.String(27), nullable=False),
    sa.Column("finished_at", sa.String(27)),
    sa.Column("kind", sa.String(16), nullable=False, server_default=JOBS_KIND),
    sa.Column("task", sa.String(253), nullable=False, server_default=""),
    sa.Column("pod", sa.String(253), nullable=False, server_default=""),
    sa.Column("partition", sa.String(253), nullable=False, server_default=""),
    sa.Index("commands_by_job", "namespace", "job", "received_at"),
    sa.Index("commands_by_command", "namespace", "command"),
    # Contains the rows without an outcome alone: reading them does not cost more with a history.
    sa.Index(
        "commands_open",
        "received_at",
        "id",
        sqlite_where=sa.text("finished_at IS NULL"),
        postgresql_where=sa.text("finished_at IS NULL"),
    ),
    sa.Index("commands_by_finish", "finished_at"),
)


OPEN_STATES = (CommandState.ACCEPTED, CommandState.ISSUED)


class CommandRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One row; times are RFC 3339 text in UTC."""

    id: str
    namespace: str
    """Empty for a queue."""
    job: str
    """Name of the job or queue."""
    job_uid: str
    action: str
    who: str
    command: str
    """Name of the Command object; empty if the command is a patch."""
    command_uid: str = ""
    state: str = CommandState.ACCEPTED
    detail: str = ""
    received_at: str
    finished_at: str | None = None
    kind: str = JOBS_KIND
    task: str = ""
    pod: str = ""
    partition: str = ""

    @property
    def is_open(self) -> bool:
        """Whether there is no outcome yet."""
        return self.state in OPEN_STATES


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a command."""

    id: str
    state: CommandState
    detail: str
    at: datetime
    command_uid: str = ""
    """Uid of the Command object, if it is known."""


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The row after which a page of rows begins."""

    received_at: str
    id: str


def timestamp(time: datetime) -> str:
    """Return RFC 3339 text with microseconds in UTC, which sorts by time."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


_OPEN = sa.text("finished_at IS NULL")  # The condition of the index, literally.

_MARK_ISSUED = (
    sa.update(COMMANDS)
    .where(COMMANDS.c.id == sa.bindparam("row_id"), COMMANDS.c.state == CommandState.ACCEPTED)
    .values(state=CommandState.ISSUED, command_uid=sa.bindparam("uid"))
)
_FINISH = (
    sa.update(COMMANDS)
    .where(COMMANDS.c.id == sa.bindparam("row_id"), COMMANDS.c.finished_at.is_(None))
    .values(
        state=sa.bindparam("new_state"),
        detail=sa.bindparam("new_detail"),
        finished_at=sa.bindparam("at"),
        command_uid=sa.func.coalesce(
            sa.func.nullif(sa.bindparam("uid", type_=sa.String), ""), COMMANDS.c.command_uid
        ),
    )
)


class CommandStore:
    """Reads and writes the ``commands`` table; methods raise :class:`StoreUnavailableError`.

    Every write is idempotent: rows are keyed by id, and an existing outcome is kept. Writes of one
    kind that arrive together are one statement.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._inserts = GroupedWrites(database, _insert)
        self._issued = GroupedWrites(database, _mark_issued)
        self._outcomes = GroupedWrites(database, _finish)

    async def wait_migrated(self) -> None:
        """Wait until the schema is current."""
        await self._database.wait_migrated()

    async def ping(self) -> bool:
        """Return whether the database can be read within two seconds."""
        try:
            await self._database.read(lambda db: db.execute(sa.select(1)).first())
        except (StoreUnavailableError, sa.exc.SQLAlchemyError):
            return False
        return True

    async def add(self, record: CommandRecord) -> bool:
        """Insert a new command; return whether it may have been there already."""
        return await self._inserts.submit(record)

    async def mark_issued(self, id_: str, *, command_uid: str) -> None:
        """Record that the Command object exists."""
        await self._issued.submit({"row_id": id_, "uid": command_uid})

    async def finish(self, outcome: Outcome) -> None:
        """Record the outcome; an existing one is kept, so several replicas may write it."""
        await self._outcomes.submit(outcome)

    async def get(self, id_: str) -> CommandRecord | None:
        """Return one command."""
        rows = await self._select(sa.select(COMMANDS).where(COMMANDS.c.id == id_))
        return rows[0] if rows else None

    async def history(
        self, kind: str, namespace: str, name: str, *, limit: int, after: Position | None = None
    ) -> Sequence[CommandRecord]:
        """Return the latest commands of a job or queue, newest first; *after* a position."""
        columns = COMMANDS.c
        query = sa.select(COMMANDS).where(
            columns.namespace == namespace, columns.job == name, columns.kind == kind
        )
        if after is not None:
            position = sa.tuple_(sa.literal(after.received_at), sa.literal(after.id))
            query = query.where(sa.tuple_(columns.received_at, columns.id) < position)
        query = query.order_by(columns.received_at.desc(), columns.id.desc())
        return await self._select(query.limit(limit))

    async def list_open(
        self, *, limit: int, after: Position | None = None
    ) -> Sequence[CommandRecord]:
        """Return the commands without an outcome, oldest first; *after* a position."""
        columns = COMMANDS.c
        query = sa.select(COMMANDS).where(_OPEN)
        if after is not None:
            position = sa.tuple_(sa.literal(after.received_at), sa.literal(after.id))
            query = query.where(sa.tuple_(columns.received_at, columns.id) > position)
        query = query.order_by(columns.received_at, columns.id)
        return await self._select(query.limit(limit))

    async def get_open_by_command(self, namespace: str, command: str) -> CommandRecord | None:
        """Return the command without an outcome whose Command object has this name."""
        where = sa.and_(COMMANDS.c.namespace == namespace, COMMANDS.c.command == command, _OPEN)
        rows = await self._select(sa.select(COMMANDS).where(where))
        return rows[0] if rows else None

    async def _select(self, query: sa.Select[tuple[object, ...]]) -> Sequence[CommandRecord]:
        rows = await self._database.read(lambda db: db.execute(query).mappings().all())
        return [CommandRecord(**row) for row in rows]


def _insert(db: sa.Connection, records: Sequence[CommandRecord]) -> Sequence[bool]:
    ids = [record.id for record in records]
    found = db.execute(sa.select(COMMANDS.c.id).where(COMMANDS.c.id.in_(ids))).scalars()
    existing = set(found)
    # Two requests may insert the same row at the same time, and sorted rows are locked in an order.
    rows = {record.id: msgspec.to_builtins(record) for record in records}
    missing = [rows[id_] for id_ in sorted(rows.keys() - existing)]
    if missing:
        db.execute(insert_if_absent(db, COMMANDS), missing)
    return [record.id in existing for record in records]


def _mark_issued(db: sa.Connection, rows: Sequence[Mapping[str, str]]) -> Sequence[None]:
    db.execute(_MARK_ISSUED, sorted(rows, key=lambda row: row["row_id"]))
    return [None] * len(rows)


def _finish(db: sa.Connection, outcomes: Sequence[Outcome]) -> Sequence[None]:
    rows: list[dict[str, Any]] = [
        {
            "row_id": each.id,
            "new_state": each.state,
            "new_detail": each.detail,
            "at": timestamp(each.at),
            "uid": each.command_uid,
        }
        for each in sorted(outcomes, key=lambda each: each.id)
    ]
    db.execute(_FINISH, rows)
    return [None] * len(rows)
