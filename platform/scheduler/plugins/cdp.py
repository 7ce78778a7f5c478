"""``cdp``: cooldown protection of pods that were started a short time ago.

The label or annotation ``volcano.sh/cooldown-time`` of a pod is the time after its start for which
it is not evicted.
"""

from collections.abc import Mapping, Sequence

from ..state.cache.cache import SchedulerCache
from ..state.gangs.gang import Task
from ..state.gangs.task_table import TaskTable
from ..state.gangs.victim_columns import PROTECTED_UNTIL
from ..state.resources import BoolVector, IntVector
from .extension_points import Preemptor


class CdpPlugin:
    """Excludes pods during their cooldown time."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Ignore the arguments: there are none."""
        self._now = 0.0

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Keep the time of the cycle."""
        self._now = cache.cycle_time

    def preemptable(self, preemptor: Preemptor, candidates: Sequence[Task]) -> list[Task]:
        """Permit pods after their cooldown time."""
        return [task for task in candidates if task.traits.protected_until <= self._now]

    reclaimable = preemptable

    def victim_mask(self, preemptor: Preemptor, table: TaskTable, slots: IntVector) -> BoolVector:
        """Exclude what :meth:`preemptable` does not permit."""
        permitted: BoolVector = PROTECTED_UNTIL.values(table, slots) <= self._now
        return permitted
