"""The priority classes of the cluster, and the priorities of gangs by them."""

from collections.abc import Collection

from ..core_types import PriorityClass
from .gang import Gang


class PriorityClasses:
    """All priority classes by name."""

    def __init__(self) -> None:
        """Start without classes."""
        self._classes: dict[str, PriorityClass] = {}
        self.version = 0
        """Grows with each change."""

    def update(self, old: PriorityClass | None, new: PriorityClass | None) -> None:
        """Add, update or delete a priority class."""
        self.version += 1
        if old is not None:
            self._classes.pop(old.metadata.name, None)
        if new is not None:
            self._classes[new.metadata.name] = new

    def all(self) -> Collection[PriorityClass]:
        """Return all classes."""
        return self._classes.values()

    def of(self, gang: Gang) -> PriorityClass | None:
        """Return the class of *gang*, or the default one."""
        named = gang.podgroup.spec.priority_class_name if gang.podgroup else ""
        found = self._classes.get(named)
        defaults = (each for each in self._classes.values() if each.global_default)
        return next(defaults, None) if found is None else found

    def values(self) -> dict[str, int]:
        """Return the value of each class by name."""
        return {name: each.value for name, each in self._classes.items()}

    def priority_of(self, gang: Gang) -> int:
        """Return the priority of *gang*: that of its class, or of its pods if it is a single one or
        one of Kubernetes itself without a priority."""
        if gang.native is not None and gang.native.priority is not None:
            return gang.native.priority
        if gang.single or gang.native is not None:
            return max((task.priority for task in gang.tasks.values()), default=0)
        found = self.of(gang) if self._classes else None
        return 0 if found is None else found.value
