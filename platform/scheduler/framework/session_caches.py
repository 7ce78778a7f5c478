"""What is derived from the cache and the results of plugins, and kept across sessions."""

from ..state.cache.cache import SchedulerCache
from ..state.nodes.needed_capacity import NeededCapacity
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.queue.scheduling_queue import ANY, FREED, TOTAL, USAGE, QueueingHints
from ..state.resources import BoolVector, IntVector
from .backfilling.start_plan import StartPlan
from .feasibility import FeasibilityCache
from .framework import Framework
from .placer_cache import PlacerCache
from .plugin_calls import PluginError
from .victim_plan import pods_fitting

_MAX_CELLS = 1_000_000
"""Nodes times classes up to which is checked what empty nodes could take."""


class SessionCaches:
    """Feasible nodes, placers, planned starts, and the capacity for classes that rejected gangs
    wait for."""

    def __init__(self, cache: SchedulerCache, framework: Framework) -> None:
        """Start empty, for the plugins of *framework*."""
        self.feasibility = FeasibilityCache(cache.node_matrix, framework.filters)
        self.placers = PlacerCache(cache.node_matrix)
        self.capacity = NeededCapacity(cache.node_matrix)
        self.start_plan = StartPlan()
        self._grown: dict[EquivalenceClass, int] = {}
        """Capacities that have grown in this session, for the next :meth:`wake`."""
        self._is_freed = False
        self._scheduled = 0
        """How many statements of this session :attr:`capacity` includes."""
        self._cache = cache
        self._plugins = framework.plugins
        self._generations = self._current_generations("generation")
        self._orders = self._current_generations("order_generation")
        self._total_version = cache.node_matrix.total_version
        self._checked = self._node_versions()
        """Versions of the nodes for which :meth:`_activate_exceeding` was called last."""

    @property
    def order_version(self) -> object:
        """Differs from before if the order of gangs may have changed although the gangs have
        not."""
        return id(self), self._cache.node_matrix.total_version, self._generations, self._orders

    def check_generations(self) -> None:
        """Drop everything if a plugin returns other results although nothing in the scheduler cache
        has changed; if only orders differ, let gangs be sorted again."""
        self._orders = self._current_generations("order_generation")
        generations = self._current_generations("generation")
        if generations != self._generations:
            self._generations = generations
            self.feasibility.clear()
            self.placers.clear()
            self._cache.scheduling_queue.publish(ANY)

    def wake(self, *, own_usage: bool | None = None) -> None:
        """Wake gangs for which the nodes have capacity since the last call, and publish what has
        happened to nodes.

        At the end of a session *own_usage* is whether it has allocated pods: attempts that were
        undone change nothing.
        """
        waiting = self._cache.scheduling_queue
        if self.capacity.is_outdated if own_usage is None else own_usage:
            waiting.publish(USAGE)
        if self._total_version != self._cache.node_matrix.total_version:
            self._total_version = self._cache.node_matrix.total_version
            waiting.publish(TOTAL)
        self._activate_exceeding()
        self.update_capacity()
        self._scheduled = 0
        grown, self._grown = self._grown, {}
        if self._is_freed:
            self._is_freed = False
            waiting.publish(FREED)
        for eq_class, capacity in grown.items():
            waiting.wake_class(eq_class, capacity)

    def _activate_exceeding(self) -> None:
        """Activate the gangs that even empty nodes cannot take since a node has changed.

        With very many classes nothing is done: they are tried again after the resync period.
        """
        matrix, queue = self._cache.node_matrix, self._cache.scheduling_queue
        if self._checked == self._node_versions():
            return
        self._checked = self._node_versions()
        classes = [*queue.needed_classes()]
        if len(classes) * matrix.columns > _MAX_CELLS:
            return
        for eq_class in classes:
            try:
                feasible = self.feasibility.get(eq_class).feasible
            except PluginError:  # its gangs are tried, and rejected for that
                continue
            request = eq_class.request_vector(matrix.resource_index)
            fitting = pods_fitting(request, matrix.allocatable)
            queue.activate_exceeding(eq_class, int(fitting[feasible].sum()))

    def _node_versions(self) -> tuple[int, int]:
        matrix = self._cache.node_matrix
        return matrix.total_version, matrix.node_changes.position

    def lacks_capacity(self, hints: QueueingHints, scheduled: int) -> bool:
        """Return whether the nodes take too few pods for a gang that waits for nothing but nodes.

        *scheduled* is how many statements the session has committed.
        """
        if not hints.needs:
            return False
        if self._scheduled != scheduled:
            self._scheduled = scheduled
            self.update_capacity()
        return all(self.capacity.get(need.eq_class) < need.count for need in hints.needs)

    def update_capacity(self) -> None:
        """Update :attr:`capacity` for what has been allocated; wakes no gang yet."""
        try:
            grown, freed = self.capacity.update(self._feasible)
        except PluginError:  # the gangs are tried, and rejected for that
            self._cache.scheduling_queue.publish(ANY)
            return
        self._grown.update(grown)
        self._is_freed |= freed

    def _feasible(self, eq_class: EquivalenceClass, columns: IntVector) -> BoolVector:
        return self.feasibility.get(eq_class).feasible[columns]

    def _current_generations(self, name: str) -> tuple[int, ...]:
        return tuple(int(getattr(each, name, 0)) for each in self._plugins)
