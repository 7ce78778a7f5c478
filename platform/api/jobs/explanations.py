"""The scheduler's explanation of a waiting gang: the annotation ``batholith.io/why``.

Users may write the annotation, too: what cannot be decoded counts as missing.
"""

import msgspec

from ...model.base import ApiStruct

MAX_LENGTH = 16 * 1024
"""Characters of an annotation that is decoded; the scheduler writes at most 4096 bytes."""


class QueuePosition(ApiStruct, frozen=True):
    """Where the gang waits."""

    name: str = ""
    position: int | None = None
    waiting: int | None = None


class GangCounts(ApiStruct, frozen=True):
    """Pods of the gang."""

    needed: int = 0
    existing: int = 0
    ready: int = 0
    fitting: int = 0


class LimitReached(ApiStruct, frozen=True):
    """A limit that leaves too little of a resource."""

    requested: str = ""
    limit: str = ""
    used: str = ""
    overcommit_factor: float | None = None


class Lack(ApiStruct, frozen=True):
    """A resource of which a node has too little."""

    requested: str = ""
    free: str = ""


class Nearest(ApiStruct, frozen=True):
    """The node with the smallest shortage."""

    name: str = ""
    lacks: dict[str, Lack] = {}
    reason: str = ""


class NodesExplanation(ApiStruct, frozen=True):
    """Why no node fits the pod."""

    total: int = 0
    excluded: dict[str, int] = {}
    nearest: Nearest | None = None


class Explanation(ApiStruct, frozen=True):
    """Why a gang waits, by the last attempt of the scheduler."""

    stage: str
    reason: str = ""
    message: str = ""
    queue: QueuePosition = QueuePosition()
    pods: GangCounts = GangCounts()
    limits: dict[str, LimitReached] = {}
    pod: str = ""
    nodes: NodesExplanation | None = None


_DECODER = msgspec.json.Decoder(Explanation)


def decode_explanation(annotation: str) -> Explanation | None:
    """Decode the annotation; None if it is not what a scheduler writes."""
    if not annotation or len(annotation) > MAX_LENGTH:
        return None
    try:
        return _DECODER.decode(annotation)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
