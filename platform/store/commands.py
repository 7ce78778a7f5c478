"""The ``commands`` table: the history of commands issued through the REST API.

Every replica of the API may write it. A row is inserted before the Command object is created, so a
crash in between leaves an open row, never a Command without a row.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum

import msgspec
import sqlalchemy as sa

from .database import Database, StoreUnavailableError

METADATA = sa.MetaData()

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
    sa.Index("commands_by_job", "namespace", "job", "received_at"),
    sa.Index("commands_by_state", "state"),
    sa.Index("commands_by_command", "namespace", "command"),
    sa.Index("commands_by_finish", "finished_at"),
)


class CommandState(StrEnum):
    """State of a command."""

    ACCEPTED = "Accepted"
    """Row inserted; the Command object is not known to exist yet."""
    ISSUED = "Issued"
    """The Command object exists and awaits the job controller."""
    EXECUTED = "Executed"
    """The job's status names the Command."""
    IGNORED = "Ignored"
    """The job controller deleted the Command without effect in the job's phase."""
    UNKNOWN = "Unknown"
    """The Command was deleted and its outcome was not observed."""
    FAILED = "Failed"
    """The Command could not be created, or the job was deleted."""


OPEN_STATES = (CommandState.ACCEPTED, CommandState.ISSUED)


class CommandRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One row; times are RFC 3339 text in UTC."""

    id: str
    namespace: str
    job: str
    job_uid: str
    action: str
    who: str
    command: str
    """Name of the Command object."""
    command_uid: str = ""
    state: str = CommandState.ACCEPTED
    detail: str = ""
    received_at: str
    finished_at: str | None = None


def timestamp(time: datetime) -> str:
    """Return RFC 3339 text with microseconds in UTC, which sorts by time."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class CommandStore:
    """Reads and writes the ``commands`` table; methods raise :class:`StoreUnavailableError`.

    Every write is idempotent: rows are keyed by id, and an existing outcome is kept.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def ping(self) -> bool:
        """Return whether the database can be read within two seconds."""
        try:
            await self._database.read(lambda db: db.execute(sa.select(1)).first())
        except (StoreUnavailableError, sa.exc.SQLAlchemyError):
            return False
        return True

    async def add(self, record: CommandRecord) -> None:
        """Insert a new command, unless an attempt whose response was lost has done so."""
        row = msgspec.to_builtins(record)
        existing = sa.select(COMMANDS.c.id).where(COMMANDS.c.id == record.id)

        def insert(db: sa.Connection) -> None:
            if db.execute(existing).first() is None:
                db.execute(sa.insert(COMMANDS).values(row))

        await self._database.run(insert)

    async def mark_issued(self, id_: str, *, command_uid: str) -> None:
        """Record that the Command object exists."""
        await self._transition(
            id_,
            from_states=(CommandState.ACCEPTED,),
            state=CommandState.ISSUED,
            command_uid=command_uid,
        )

    async def finish(self, id_: str, state: CommandState, *, detail: str, at: datetime) -> None:
        """Record the outcome; an existing one is kept, so several replicas may write it."""
        await self._transition(
            id_, from_states=OPEN_STATES, state=state, detail=detail, finished_at=timestamp(at)
        )

    async def get(self, namespace: str, job: str, id_: str) -> CommandRecord | None:
        """Return one command of a job."""
        where = sa.and_(
            COMMANDS.c.id == id_, COMMANDS.c.namespace == namespace, COMMANDS.c.job == job
        )
        rows = await self._select(sa.select(COMMANDS).where(where))
        return rows[0] if rows else None

    async def history(self, namespace: str, job: str, *, limit: int) -> Sequence[CommandRecord]:
        """Return the latest commands of a job, newest first."""
        where = sa.and_(COMMANDS.c.namespace == namespace, COMMANDS.c.job == job)
        query = sa.select(COMMANDS).where(where).order_by(COMMANDS.c.received_at.desc())
        return await self._select(query.limit(limit))

    async def list_open(self) -> Sequence[CommandRecord]:
        """Return all commands without an outcome."""
        return await self._select(sa.select(COMMANDS).where(COMMANDS.c.state.in_(OPEN_STATES)))

    async def get_open_by_command(self, namespace: str, command: str) -> CommandRecord | None:
        """Return the command without an outcome whose Command object has this name."""
        where = sa.and_(
            COMMANDS.c.namespace == namespace,
            COMMANDS.c.command == command,
            COMMANDS.c.state.in_(OPEN_STATES),
        )
        rows = await self._select(sa.select(COMMANDS).where(where))
        return rows[0] if rows else None

    async def _transition(self, id_: str, *, from_states: Sequence[str], **values: str) -> None:
        where = sa.and_(COMMANDS.c.id == id_, COMMANDS.c.state.in_(from_states))
        await self._database.run(
            lambda db: db.execute(sa.update(COMMANDS).where(where).values(values))
        )

    async def _select(self, query: sa.Select[tuple[object, ...]]) -> Sequence[CommandRecord]:
        rows = await self._database.read(lambda db: db.execute(query).mappings().all())
        return [CommandRecord(**row) for row in rows]
