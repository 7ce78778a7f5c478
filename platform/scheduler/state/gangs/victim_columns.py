"""Columns of the task table by which candidates for eviction are compared at once."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ....model.names import LAST_CHECKPOINT
from ....model.run_times import OF_LIMIT, limit_of
from ..podinfo.victim_traits import unix_time
from ..resources import IntVector
from .gang import Task
from .task_table import TaskTable

T = TypeVar("T", bound=np.generic)

_MAX_SECONDS = 1e15


@dataclass(frozen=True, slots=True)
class VictimColumn(Generic[T]):
    """A column over all tasks."""

    name: str
    dtype: type[T]
    getter: Callable[[Task], int]

    def values(self, table: TaskTable, slots: IntVector) -> npt.NDArray[T]:
        """Return the values of *slots*."""
        return table.column(self.name)[slots].astype(self.dtype, copy=False)


def _saved(task: Task) -> int:
    podgroup = task.gang.podgroup if task.gang is not None else None
    annotations = podgroup.metadata.annotations if podgroup is not None else {}
    return max(task.traits.saved, unix_time(annotations.get(LAST_CHECKPOINT, "")))


def _time_limit(task: Task) -> int:
    podgroup = task.gang.podgroup if task.gang is not None else None
    annotations = podgroup.metadata.annotations if podgroup is not None else {}
    return _seconds(tuple(annotations.get(name, "") for name in OF_LIMIT))


@lru_cache(maxsize=4096)
def _seconds(annotations: tuple[str, ...]) -> int:
    limit = limit_of(dict(zip(OF_LIMIT, annotations, strict=True)))
    return math.ceil(min(limit or 0.0, _MAX_SECONDS))


CRITICAL = VictimColumn("critical", np.bool_, lambda task: task.traits.critical)
PREEMPTABLE = VictimColumn("preemptable", np.bool_, lambda task: task.traits.preemptable)
STARTED = VictimColumn("started", np.int64, lambda task: task.traits.started)
"""When the pod was started, as Unix time."""

PROTECTED_UNTIL = VictimColumn(
    "protected until", np.int64, lambda task: task.traits.protected_until
)
"""When the cooldown of the pod ends, as Unix time; 0 without one."""

SAVED = VictimColumn("saved", np.int64, _saved)
"""Until when the work of the pod is saved, as Unix time; 0 without a checkpoint."""

TIME_LIMIT = VictimColumn("time limit", np.int64, _time_limit)
"""Seconds after which its gang is ended; 0 without a limit."""


def add_victim_columns(table: TaskTable) -> None:
    """Add the columns to *table*."""
    for column in (CRITICAL, PREEMPTABLE, STARTED, PROTECTED_UNTIL, SAVED, TIME_LIMIT):
        table.add_column(column.name, column.dtype, column.getter)
