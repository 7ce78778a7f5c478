"""What the scheduler keeps of the past usage of queues, in a ConfigMap that the REST API reads."""

import msgspec

CONFIGMAP = "batholith-scheduler-state"
"""Default name of the ConfigMap, in the namespace of the scheduler."""
KEY = "usage"


class PastUse(msgspec.Struct, array_like=True):
    """What is kept of a queue, or of a user in a queue."""

    queue: str
    user: str
    """Empty for the queue as a whole."""

    used: list[float]
    """Amounts times seconds, in the order of the resources."""


class PastWindow(msgspec.Struct, array_like=True):
    """What is kept of a queue that has a budget."""

    queue: str
    start: float
    end: float
    at: float
    """Unix time up to which it counts, within the window."""

    used: list[float]
    """As above."""


class KeptUsage(msgspec.Struct):
    """What is kept over a restart."""

    at: float
    """Unix time at which it was up to date."""

    resources: list[str] = []
    units: list[int] = []
    """The amount that is one of each resource: a CPU, a byte, a device. Empty as kept by a version
    that did not write it."""

    half_life: float = 0.0
    """Seconds after which usage counts half."""

    usage: list[PastUse] = []
    windows: list[PastWindow] = []
