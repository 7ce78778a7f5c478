"""Why a gang waits, as data: the source of explanations and messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Stage(StrEnum):
    """At which step of scheduling a gang waits."""

    QUEUE = "queue"
    """Its queue does not exist or is not open."""

    QUOTA = "quota"
    """A limit of its queue, its namespace or the cluster is reached."""

    GANG = "gang"
    """Members are missing or have scheduling gates."""

    POD = "pod"
    """A field of a pod, or something that it refers to, keeps it unschedulable on every node."""

    NODES = "nodes"
    """No node fits a pod that the gang needs."""

    SCHEDULER = "scheduler"
    """A plugin of the scheduler failed."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource of which a limit leaves too little; amounts as in ``state.resources``."""

    resource: str
    requested: int
    limit: int
    used: int
    factor: float = 1.0
    """The overcommit factor by which the limit exceeds what exists."""
    queue: str = ""
    """The queue above that of the gang that has the limit, if it is one."""
    resource_quota: str = ""
    """The ResourceQuota in the namespace of the gang that has the limit, if it is one."""


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """What a queue has used of its budget of one resource; amounts as in ``state.resources``, times
    hours."""

    queue: str
    resource: str
    used: int
    limit: int
    until: float
    """When the window of time ends, in Unix time."""


@dataclass(frozen=True, slots=True)
class NearestNode:
    """The node with the smallest shortage for a pod."""

    name: str
    lacks: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By resource that is insufficient: requested, free."""

    reason: str = ""
    """Why it is infeasible although its resources suffice."""


@dataclass(frozen=True, slots=True)
class NodeFit:
    """How the nodes of the cluster fit one pod."""

    message: str
    """One line for conditions, with the number of nodes per reason."""

    total: int = 0
    """Number of nodes."""

    excluded: Mapping[str, int] = field(default_factory=dict)
    """Number of nodes by reason; each node is counted at the first filter or limit that excludes
    it."""

    nearest: NearestNode | None = None


@dataclass(frozen=True, slots=True)
class DomainFit:
    """How the domains of the network fit a gang."""

    highest_tier: str
    """The highest tier allowed, as it was given."""

    nearest: str = ""
    """The domain that fits the most pods, of those that are allowed."""

    needed: int = 0
    fitting: int = 0
    """How many pods are needed, and fit there."""


@dataclass(frozen=True, slots=True)
class FitError:
    """The first task of its role that did not fit."""

    task_name: str
    """Name of its pod."""

    uid: str
    message: str
    stage: Stage = Stage.NODES
    nodes: NodeFit | None = None
    """Set at stage ``NODES``, unless domains of the network are too small."""

    shortages: tuple[Shortage, ...] = ()
    """What a limit leaves too little of, at stage ``QUOTA``."""

    domains: DomainFit | None = None
    """Set at stage ``NODES`` if domains of the network are too small."""

    sub_group: str = ""
    """Name of the sub-group of the gang that did not fit, if it is in one."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a gang is unschedulable, by the last attempt."""

    reason: str
    """For ``condition.reason``."""

    message: str = ""
    """Rejection of the gang as a whole, if any."""

    fit_errors: Mapping[str, FitError] = field(default_factory=dict)
    """By role."""

    fitting_uids: frozenset[str] = frozenset()
    """Uids of tasks that fit in the attempt."""

    stage: Stage = Stage.NODES
    """At which step it was rejected as a whole; without ``message``, see the fit errors."""

    shortages: tuple[Shortage, ...] = ()

    budget: BudgetUse | None = None
    """The budget that is used up, if that is why."""

    exceeds_nodes: bool = False
    """Whether the nodes could not take what the gang needs even if nothing else ran."""

    fits: bool = False
    """Whether the nodes have what the gang needs, so that evictions would not help."""
