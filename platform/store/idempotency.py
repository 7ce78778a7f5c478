"""The ``idempotency_keys`` table: requests with an Idempotency-Key, and their responses.

The row is inserted before the request is executed and holds the id of the operation, from which
all names that the request creates are derived. So a request that was interrupted at any point is
executed again without doing anything twice. One replica executes it at a time: it owns the row
until its lease expires. Leases only save work, so clocks need not agree.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
import sqlalchemy as sa

from .commands import METADATA, timestamp
from .database import Database, insert_if_absent

IDEMPOTENCY_KEYS = sa.Table(
    "idempotency_keys",
    METADATA,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("operation", sa.String(36), nullable=False),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("owner", sa.String(36), nullable=False),
    sa.Column("lease_until", sa.String(27), nullable=False),
    sa.Column("received_at", sa.String(27), nullable=False),
    sa.Column("plan", sa.LargeBinary),
    sa.Column("status", sa.Integer),
    sa.Column("body", sa.LargeBinary),
    sa.Column("media_type", sa.String(100)),
    sa.Column("location", sa.Text),
    sa.Index("idempotency_keys_by_time", "received_at"),
)

RETENTION = timedelta(hours=24)
"""Time for which a response is kept."""

EXPIRED = ""
"""A lease that has no holder."""

SWEEP_SIZE = 1000
"""Maximum number of rows that one transaction deletes."""


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request."""

    status: int
    body: bytes
    media_type: str
    location: str | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt to execute a request."""

    key: str
    """Digest of the caller and the key."""
    operation: str
    """Id of the operation, if no earlier attempt has chosen one."""
    fingerprint: str
    """Digest of the request."""
    owner: str
    """Id of this attempt."""
    now: datetime
    lease: timedelta


class ClaimResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt may do."""

    operation: str
    is_owner: bool = False
    """The attempt may execute the request as *operation*."""
    is_same_request: bool = True
    """The first request with this key had the same fingerprint."""
    response: StoredResponse | None = None
    """The response, if the request has been executed."""
    plan: bytes | None = None
    """What an interrupted attempt was about to do, if it was recorded."""


class IdempotencyStore:
    """Reads and writes the table; methods raise :class:`StoreUnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, claim: Claim) -> ClaimResult:
        """Own the request, unless it has been executed or another attempt owns it."""
        return await self._database.run(lambda db: _claim(db, claim))

    async def set_plan(self, key: str, owner: str, plan: bytes) -> bool:
        """Record what the owner is about to do; return whether it still is the owner."""
        return await self._update(key, owner, plan=plan)

    async def complete(self, key: str, owner: str, response: StoredResponse) -> bool:
        """Store the response; return whether the attempt was still the owner."""
        return await self._update(key, owner, **msgspec.structs.asdict(response))

    async def release(self, key: str, owner: str) -> None:
        """End an attempt without a response, so that the request can be repeated at once."""
        await self._update(key, owner, lease_until=EXPIRED)

    async def renew(self, held: Sequence[tuple[str, str]], *, until: datetime) -> None:
        """Extend the leases of attempts, given as key and owner."""
        columns = IDEMPOTENCY_KEYS.c
        query = (
            sa.update(IDEMPOTENCY_KEYS)
            .where(
                columns.key == sa.bindparam("held_key"),
                columns.owner == sa.bindparam("held_by"),
                columns.status.is_(None),
            )
            .values(lease_until=timestamp(until))
        )
        rows = [{"held_key": key, "held_by": owner} for key, owner in sorted(held)]
        await self._database.run(lambda db: db.execute(query, rows))

    async def sweep(self, now: datetime) -> int:
        """Delete some of the rows that have expired; return how many."""
        return await self._database.run(lambda db: _sweep(db, now))

    async def _update(self, key: str, owner: str, **values: object) -> bool:
        columns = IDEMPOTENCY_KEYS.c
        mine = sa.and_(columns.key == key, columns.owner == owner)
        change = sa.update(IDEMPOTENCY_KEYS).where(mine, columns.status.is_(None)).values(values)

        def update(db: sa.Connection) -> bool:
            db.execute(change)
            # Not the number of changed rows: a repeated transaction changes none.
            return db.execute(sa.select(columns.key).where(mine)).first() is not None

        return await self._database.run(update)


def _claim(db: sa.Connection, claim: Claim) -> ClaimResult:
    columns = IDEMPOTENCY_KEYS.c
    fresh = {
        "key": claim.key,
        "operation": claim.operation,
        "fingerprint": claim.fingerprint,
        "owner": claim.owner,
        "lease_until": timestamp(claim.now + claim.lease),
        "received_at": timestamp(claim.now),
        "plan": None,
        "status": None,
        "body": None,
        "media_type": None,
        "location": None,
    }
    db.execute(insert_if_absent(db, IDEMPOTENCY_KEYS), fresh)
    # Locked, so that of two attempts only one finds an expired lease.
    query = sa.select(IDEMPOTENCY_KEYS).where(columns.key == claim.key).with_for_update()
    row = db.execute(query).mappings().one()
    is_leased = row["status"] is None and row["lease_until"] >= timestamp(claim.now)
    if row["owner"] == claim.owner and row["status"] is None:
        return ClaimResult(operation=row["operation"], is_owner=True, plan=row["plan"])
    if row["received_at"] < timestamp(claim.now - RETENTION) and not is_leased:
        db.execute(sa.update(IDEMPOTENCY_KEYS).where(columns.key == claim.key).values(fresh))
        return ClaimResult(operation=claim.operation, is_owner=True)
    operation, plan = row["operation"], row["plan"]
    if row["fingerprint"] != claim.fingerprint:
        return ClaimResult(operation=operation, is_same_request=False)
    if row["status"] is not None:
        response = StoredResponse(
            status=row["status"],
            body=row["body"],
            media_type=row["media_type"],
            location=row["location"],
        )
        return ClaimResult(operation=operation, response=response)
    if is_leased:
        return ClaimResult(operation=operation)
    taken = {"owner": claim.owner, "lease_until": fresh["lease_until"]}
    db.execute(sa.update(IDEMPOTENCY_KEYS).where(columns.key == claim.key).values(taken))
    return ClaimResult(operation=operation, is_owner=True, plan=plan)


def _sweep(db: sa.Connection, now: datetime) -> int:
    columns = IDEMPOTENCY_KEYS.c
    # A request in progress keeps its row: its lease is newer than the cutoff.
    expired = (
        sa.select(columns.key)
        .where(columns.received_at < timestamp(now - RETENTION))
        .where(sa.or_(columns.status.is_not(None), columns.lease_until < timestamp(now)))
        .order_by(columns.received_at)
        .limit(SWEEP_SIZE)
    )
    keys = db.execute(expired).scalars().all()
    db.execute(sa.delete(IDEMPOTENCY_KEYS).where(columns.key.in_(keys)))
    return len(keys)
