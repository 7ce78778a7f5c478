"""Columns of the task table by which candidates for eviction are compared at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ..resources import IntVector
from .gang import Task
from .task_table import TaskTable

T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class VictimColumn(Generic[T]):
    """A column over all tasks."""

    name: str
    dtype: type[T]
    getter: Callable[[Task], int]

    def values(self, table: TaskTable, slots: IntVector) -> npt.NDArray[T]:
        """Return the values of *slots*."""
        return table.column(self.name)[slots].astype(self.dtype, copy=False)


CRITICAL = VictimColumn("critical", np.bool_, lambda task: task.traits.critical)
PREEMPTABLE = VictimColumn("preemptable", np.bool_, lambda task: task.traits.preemptable)
STARTED = VictimColumn("started", np.int64, lambda task: task.traits.started)
"""When the pod was started, as Unix time."""

PROTECTED_UNTIL = VictimColumn(
    "protected until", np.int64, lambda task: task.traits.protected_until
)
"""When the cooldown of the pod ends, as Unix time; 0 without one."""


def add_victim_columns(table: TaskTable) -> None:
    """Add the columns to *table*."""
    for column in (CRITICAL, PREEMPTABLE, STARTED, PROTECTED_UNTIL):
        table.add_column(column.name, column.dtype, column.getter)
