"""What the REST API asks the leading scheduler about a gang that waits, and about what is reserved.

Names of jobs are in it that its reader may not be permitted to see: the REST API decides on that.
Amounts are quantities of Kubernetes, by resource.
"""

from .base import ApiStruct

WAIT_PATH = "/wait"
RESERVATIONS_PATH = "/reservations"

MAX_JOBS = 10
"""Jobs of a list that a response names."""

MAX_GROUPS = 10
"""Groups of nodes of a response."""

MAX_RESERVATIONS = 200
MAX_RESERVED_NODES = 5_000
"""Entries of nodes in all reservations of a response."""


class WaitRequest(ApiStruct, frozen=True):
    """The gang of a PodGroup: of Volcano's, or else of that name of Kubernetes itself."""

    namespace: str
    podgroup: str


class JobRef(ApiStruct, frozen=True):
    """The job of a gang: what owns its PodGroup, else the PodGroup, or its only pod."""

    namespace: str
    api_version: str
    kind: str
    name: str


class GangAhead(ApiStruct, frozen=True):
    """A gang that is tried before the one that was asked about."""

    job: JobRef
    requests: dict[str, str] = {}


class Holder(ApiStruct, frozen=True):
    """A gang that holds what the one that was asked about lacks."""

    job: JobRef
    queue: str
    held: dict[str, str]
    nodes: int
    until: float | None = None
    """When it is expected to end, in Unix time."""

    basis: str = ""
    """What that is known from, see ``Basis``."""


class FreeAmount(ApiStruct, frozen=True):
    """What is free of a resource that a gang asks for, in a queue or a group of nodes."""

    resource: str
    asked: str
    """By the pods that the gang needs to start, of which none runs yet."""

    free: str
    total: str
    """Of which that is free: the limit, or what the nodes have."""

    queue: str = ""
    """The queue, or else it is a group of nodes."""

    group: str = ""
    """Name of the group of nodes; empty for those in no group."""

    nodes: int = 0
    """How many nodes the group has."""

    usable: int = 0
    """On how many of them the pods may run at all; only these are counted."""

    largest: str = ""
    """The most that is free on one of them."""


class WaitDetails(ApiStruct, frozen=True):
    """Why a gang waits, beyond its own PodGroup."""

    position: int
    """Its rank in its queue, from 1."""

    waiting: int
    """How many gangs wait there."""

    ahead: tuple[GangAhead, ...] = ()
    """The first gangs of the queue, in order, as far as they precede it."""

    free: tuple[FreeAmount, ...] = ()
    holders: tuple[Holder, ...] = ()
    """The ones whose end is expected first."""

    more_holders: int = 0
    """How many others there are."""


class ReservedNode(ApiStruct, frozen=True):
    """What is reserved on a node."""

    node: str
    amounts: dict[str, str]


class NodeReservation(ApiStruct, frozen=True):
    """What is reserved on nodes for a gang that waits."""

    job: JobRef
    queue: str
    purpose: str
    """``start`` for a planned start, or why the nodes are held until it starts: ``preemption``,
    ``stranded``, ``nominated``, ``planned`` or ``kept``."""

    nodes: tuple[ReservedNode, ...]
    start: float | None = None
    """When it is planned to start, in Unix time; ``None`` if that is not known."""

    until: float | None = None
    """When it expires, in Unix time, if it does."""


class Reservations(ApiStruct, frozen=True):
    """All that is reserved on nodes for gangs that wait."""

    items: tuple[NodeReservation, ...] = ()
    is_complete: bool = True
    """Whether there are no more than may be returned."""
