"""Past usage and budgets of queues, as the leading scheduler has written them last.

It keeps them in a ConfigMap over its restarts, and writes that once a minute while they change.
"""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeGuard

import msgspec

from ..kube.client.client import Client
from ..kube.errors import ApiError, ConnectionLostError, DecodeError
from ..machinery.clock import Clock
from ..model.base import ApiStruct
from ..model.budgets import budget_of
from ..model.names import CONFIGMAPS
from ..model.past_usage import CONFIGMAP, KEY, KeptUsage
from ..model.quantity import parse
from ..model.queue import Queue
from ..wire.queues import BudgetAmounts, PastQueueUsage, QueueBudget

log = logging.getLogger(__name__)

READ_INTERVAL = 10.0
"""Seconds for which what was read counts."""
_HOUR = 3600.0


class _ConfigMap(ApiStruct, frozen=True):
    data: dict[str, str] = {}


class PastUsages:
    """Reads what the scheduler has written, with the account of the REST API."""

    def __init__(self, client: Client, namespace: str, *, clock: Clock) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._read_at = -READ_INTERVAL
        self._kept: KeptUsage | None = None

    async def read(self) -> KeptUsage | None:
        """Return what the scheduler has written; ``None`` if that is nothing, or not readable."""
        if self._clock.monotonic() - self._read_at >= READ_INTERVAL:
            self._kept = await self._fetch()
            self._read_at = self._clock.monotonic()
        return self._kept

    async def _fetch(self) -> KeptUsage | None:
        try:
            found = await self._client.get(
                CONFIGMAPS, CONFIGMAP, namespace=self._namespace, view=_ConfigMap
            )
            text = found.data.get(KEY, "")
            return msgspec.json.decode(text, type=KeptUsage) if text else None
        except (ApiError, ConnectionLostError, DecodeError, msgspec.MsgspecError) as error:
            log.debug("cannot read past usage", extra={"error": str(error)})
            return None


def past_usage_of(kept: KeptUsage | None, queue: str) -> PastQueueUsage | None:
    """Return what *queue* has used; ``None`` if no usage is recorded."""
    if not _is_complete(kept):
        return None
    used = next((each.used for each in kept.usage if (each.queue, each.user) == (queue, "")), [])
    return PastQueueUsage(
        resource_hours=_hours(kept, used),
        half_life_seconds=kept.half_life,
        at=_time(kept.at),
    )


def budget_use_of(kept: KeptUsage | None, queue: Queue, now: datetime) -> QueueBudget | None:
    """Return what *queue* has used of its budget in the current window; ``None`` if it has none, or
    no usage is recorded, so that the budget has no effect."""
    budget = budget_of(queue.metadata.annotations)
    if budget is None or not _is_complete(kept):
        return None
    window = budget.window_at(now.timestamp())
    name = queue.metadata.name
    past = next(
        (each for each in kept.windows if (each.queue, each.start) == (name, window.start)), None
    )
    used = _hours(kept, [] if past is None else past.used)
    return QueueBudget(
        policy="hard" if budget.is_hard else "soft",
        starts_at=_time(window.start),
        ends_at=_time(window.end),
        resource_hours={
            resource: BudgetAmounts(
                used=used.get(resource, 0.0), limit=parse(limit).milli_value() / 1000
            )
            for resource, limit in budget.hours.items()
        },
    )


def _is_complete(kept: KeptUsage | None) -> TypeGuard[KeptUsage]:
    """Return whether usage is recorded, by a scheduler that names its units."""
    return kept is not None and bool(kept.resources) and len(kept.units) == len(kept.resources)


def _hours(kept: KeptUsage, used: Sequence[float]) -> dict[str, float]:
    columns = zip(kept.resources, kept.units, used, strict=False)
    return {
        name: round(amount / unit / _HOUR, 3)
        for name, unit, amount in columns
        if amount and name != "pods"
    }


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)
