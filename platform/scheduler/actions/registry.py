"""The table of scheduler actions; other packages add some by entry points."""

from collections.abc import Callable, Mapping

from ..framework.preemption import EvictionOptions
from ..framework.session import Session
from ..framework.victims import Reach
from .allocate import Allocate
from .backfill import backfill
from .enqueue import enqueue
from .gang_evictions import domain_options
from .preempt import preempt
from .reclaim import reclaim
from .shuffle import shuffle
from .starving import eviction_options

Action = Callable[[Session], None]
NamedAction = tuple[str, Action]
ActionFactory = Callable[[Mapping[str, object]], Action]
"""What an entry point of ``batholith.scheduler_actions`` is: it gets the action's arguments."""


def _evicting(
    evict: Callable[[Session, EvictionOptions], None],
    options_of: Callable[[Mapping[str, object]], EvictionOptions],
) -> ActionFactory:
    """Return the factory of an action that evicts with the options of its arguments."""

    def create(arguments: Mapping[str, object]) -> Action:
        options = options_of(arguments)
        return lambda session: evict(session, options)

    return create


ENQUEUE, SHUFFLE = "enqueue", "shuffle"
CONFIGURED: Mapping[str, ActionFactory] = {
    "allocate": Allocate,
    "gangpreempt": _evicting(preempt, domain_options),
    "gangreclaim": _evicting(reclaim, domain_options),
    "preempt": _evicting(preempt, eviction_options),
    "reclaim": _evicting(reclaim, eviction_options),
}
"""Actions that have arguments."""

ACTIONS: Mapping[str, Action] = {
    ENQUEUE: enqueue,
    "allocate": CONFIGURED["allocate"]({}),
    "backfill": backfill,
    **{name: CONFIGURED[name]({}) for name in ("gangpreempt", "gangreclaim", "preempt", "reclaim")},
    SHUFFLE: shuffle,
}
"""All actions of Volcano by name."""

EVICTING: Mapping[str, Reach] = {
    "preempt": Reach.PREEMPT,
    "gangpreempt": Reach.PREEMPT,
    "reclaim": Reach.RECLAIM,
    "gangreclaim": Reach.RECLAIM,
}
"""The actions that evict pods for gangs that did not fit. Of two with equal reach, the first one
tries a gang."""

_CACHE = {"predicateErrorCacheEnable": "results of filters are always kept"}
_DRY_RUNS = "all nodes are evaluated together"
ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "allocate": _CACHE,
    "backfill": _CACHE,
    "preempt": {
        **_CACHE,
        "enableTopologyAwarePreemption": _DRY_RUNS,
        "topologyAwarePreemptWorkerNum": _DRY_RUNS,
        "minCandidateNodesPercentage": _DRY_RUNS,
        "minCandidateNodesAbsolute": _DRY_RUNS,
        "maxCandidateNodesAbsolute": _DRY_RUNS,
    },
    "reclaim": _CACHE,
    "gangpreempt": {},
    "gangreclaim": {},
    SHUFFLE: {},
    ENQUEUE: {},
}
"""Arguments of Volcano's actions, none of which has an effect here, with the reason."""
