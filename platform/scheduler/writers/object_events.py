"""Events of PodGroups and queues, for people."""

import math
from datetime import UTC, datetime
from typing import Literal

from ...machinery.event_recorder import Recorder, object_reference
from ...model import names, times
from ...model.queue import Queue
from ..framework.decision import IncompleteEviction, StartDelay
from ..framework.stranded_gangs import GANG_INCOMPLETE
from ..plugins.placement import GangRef

START_DELAYED = "StartDelayed"
BUDGET_IGNORED = "BudgetIgnored"


def record_incomplete(recorder: Recorder | None, eviction: IncompleteEviction) -> None:
    """Record that the members of a gang that was never complete are evicted."""
    _record(recorder, eviction.gang, "Warning", GANG_INCOMPLETE, eviction.message)


def record_delay(recorder: Recorder | None, delay: StartDelay) -> None:
    """Record that the planned start of a gang is later than was reported before."""
    until = "an unknown time" if math.isinf(delay.later) else _time(delay.later)
    message = f"planned start delayed from {_time(delay.earlier)} to {until}: {delay.cause}"
    _record(recorder, delay.gang, "Normal", START_DELAYED, message)


def record_ignored_budget(recorder: Recorder | None, old: Queue | None, new: Queue) -> None:
    """Record that the budget of *new*, which *old* did not have, has no effect without the plugin
    that evaluates budgets."""
    budget = new.metadata.annotations.get(names.BUDGET)
    is_known = old is not None and old.metadata.annotations.get(names.BUDGET) == budget
    if recorder is not None and budget is not None and not is_known:
        recorder.record(
            object_reference(names.QUEUES, new.metadata),
            type="Warning",
            reason=BUDGET_IGNORED,
            message=f"{names.BUDGET} has no effect: the plugin fairshare is not configured",
        )


def _record(
    recorder: Recorder | None,
    gang: GangRef,
    kind: Literal["Normal", "Warning"],
    reason: str,
    message: str,
) -> None:
    podgroup = gang.podgroup
    if recorder is not None and podgroup is not None and podgroup.is_stored:
        reference = object_reference(names.PODGROUPS, podgroup.metadata)
        recorder.record(reference, type=kind, reason=reason, message=message)


def _time(seconds: float) -> str:
    return times.format(datetime.fromtimestamp(seconds, UTC))
