"""For how long gangs run at least before they are evicted for others."""

import logging

from ....model import names
from ....model.run_times import seconds_of
from ..gangs.gang import Gang
from .queues import Queues

log = logging.getLogger(__name__)


class MinRuntimes:
    """The annotations of queues and priority classes, read again when one of these has changed."""

    def __init__(self, queues: Queues) -> None:
        """Read those of *queues* and of its priority classes."""
        self._queues = queues
        self._by_queue: dict[str, float] = {}
        self._by_class: dict[str, float] = {}
        self._versions = (-1, -1)

    def longest(self) -> float:
        """Return the longest time of any queue or priority class in seconds; 0 without any."""
        self._update()
        return max((*self._by_queue.values(), *self._by_class.values()), default=0.0)

    def of(self, gang: Gang) -> float:
        """Return for how many seconds after its start *gang* is not evicted: the longer time of its
        queue, or of the nearest one above it that has one, and of its priority class."""
        self._update()
        path = self._queues.with_ancestors(self._queues.of(gang).name)
        by_queue = next((self._by_queue[name] for name in path if name in self._by_queue), 0.0)
        found = self._queues.priority_classes.of(gang)
        by_class = 0.0 if found is None else self._by_class.get(found.metadata.name, 0.0)
        return max(by_queue, by_class)

    def _update(self) -> None:
        classes = self._queues.priority_classes
        versions = (self._queues.version, classes.version)
        if versions == self._versions:
            return
        self._versions = versions
        queues = [each.object for each in self._queues.by_name.values() if each.object is not None]
        self._by_queue = {
            each.metadata.name: seconds
            for each in queues
            if (seconds := seconds_of(each.metadata.annotations, names.MIN_RUNTIME))
        }
        self._by_class = {}
        for found in classes.all():
            seconds = seconds_of(found.metadata.annotations, names.MIN_RUNTIME)
            if seconds:
                self._by_class[found.metadata.name] = seconds
            elif names.MIN_RUNTIME in found.metadata.annotations:
                # No webhook validates priority classes.
                name = found.metadata.name
                log.warning("ignore malformed annotation", extra={"priorityclass": name})
