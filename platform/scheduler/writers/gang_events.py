"""Events of gangs: what has become of one, for people."""

import math
from datetime import UTC, datetime
from typing import Literal

from ...machinery.event_recorder import Recorder, object_reference
from ...model import names, times
from ..framework.decision import IncompleteEviction, StartDelay
from ..framework.stranded_gangs import GANG_INCOMPLETE
from ..plugins.placement import GangRef

START_DELAYED = "StartDelayed"


def record_incomplete(recorder: Recorder | None, eviction: IncompleteEviction) -> None:
    """Record that the members of a gang that was never complete are evicted."""
    _record(recorder, eviction.gang, "Warning", GANG_INCOMPLETE, eviction.message)


def record_delay(recorder: Recorder | None, delay: StartDelay) -> None:
    """Record that the planned start of a gang is later than was reported before."""
    until = "an unknown time" if math.isinf(delay.later) else _time(delay.later)
    message = f"planned start delayed from {_time(delay.earlier)} to {until}: {delay.cause}"
    _record(recorder, delay.gang, "Normal", START_DELAYED, message)


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
