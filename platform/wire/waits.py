"""What a job that waits competes with, and what is reserved on nodes for whom.

Jobs that the caller may not see have no names there.
"""

from datetime import datetime

from .base import Items, Record


class OtherJob(Record, frozen=True):
    """A job that the caller may see."""

    namespace: str = ""
    kind: str = ""
    """As in paths, such as ``jobs``; of what no path has, the kind of Kubernetes."""
    name: str = ""


class JobAhead(Record, frozen=True):
    """A job that waits in the same queue, and is tried before."""

    job: OtherJob | None = None
    """Null if the caller may not see it."""
    requests: dict[str, str] = {}
    """What its pods request that wait."""


class JobHolder(Record, frozen=True):
    """A job that holds what another one lacks."""

    job: OtherJob | None = None
    """Null if the caller may not see it."""
    queue: str = ""
    held: dict[str, str] = {}
    """What it holds of the resources that are short."""
    nodes: int = 0
    """On how many nodes."""
    until: datetime | None = None
    """When it is expected to end; null if that is not known."""
    basis: str = ""
    """``limit``, ``estimate`` or ``prediction``: what that is known from."""


class FreeAmount(Record, frozen=True):
    """What is free of a resource that a job requests, in a queue or a group of nodes."""

    resource: str = ""
    asked: str = ""
    """By the pods that the job still needs to start, together."""
    free: str = ""
    total: str = ""
    """Of which that is free: the limit of the queue, or what the nodes have."""
    queue: str = ""
    """The queue; empty for a group of nodes."""
    group: str = ""
    """The value of the label ``volcano.sh/nodegroup-name`` of the nodes, or else that of
    ``node.kubernetes.io/instance-type``; empty for nodes with neither."""
    nodes: int = 0
    usable: int = 0
    """On how many of the nodes the pods may run at all; only these are counted."""
    largest: str = ""
    """The most that is free on one of them."""


class Competition(Record, frozen=True):
    """What a job that waits competes with, as the scheduler knows it now."""

    position: int = 0
    """Its rank among the waiting jobs of its queue, from 1."""
    waiting: int = 0
    ahead: list[JobAhead] = []
    """The first ten jobs of the queue, in order, as far as they precede it."""
    free: list[FreeAmount] = []
    """By queue, and by group of nodes."""
    holders: list[JobHolder] = []
    """Ten jobs at most that hold what it lacks; the first ones to end."""
    more_holders: int = 0
    """How many others there are."""


class ReservedNode(Record, frozen=True):
    """What is reserved on a node."""

    node: str = ""
    amounts: dict[str, str] = {}


PURPOSES = {
    "preemption": "pods are evicted for it",
    "stranded": "pods of it run that need the others",
    "nominated": "another scheduler has evicted pods for it",
    "planned": "its pods were created without their nodes",
    "kept": "pods of it that ran there are created again",
}
"""Text for each purpose for which nodes are held until a job starts."""


class Reservation(Record, frozen=True):
    """What is reserved on nodes for a job that waits."""

    job: OtherJob | None = None
    """Null if the caller may not see it."""
    queue: str = ""
    purpose: str = ""
    """``start`` for a planned start; else why the nodes are held until the job starts:
    ``preemption`` (pods are evicted for it), ``stranded`` (pods of it run that need the others),
    ``nominated`` (another scheduler has evicted pods for it), ``planned`` (its pods were created
    without the nodes that were planned), ``kept`` (pods of it that ran there are created again)."""
    start: datetime | None = None
    """When it is planned to start; null if that is not known."""
    until: datetime | None = None
    """When the reservation expires, if it does."""
    nodes: list[ReservedNode] = []


class ReservationList(Items[Reservation], frozen=True):
    """All reservations; those for planned starts are the last, in their order."""

    is_complete: bool = True
    """Whether there are no more than a response may have."""
