"""The scheduler's explanation of a waiting gang: the annotation ``batholith.io/why``.

Users may write the annotation, too: what cannot be decoded counts as missing.
"""

import msgspec

from ...wire.jobs import Explanation, Limit

MAX_LENGTH = 16 * 1024
"""Characters of an annotation that is decoded; the scheduler writes at most 4096 bytes."""


class _Limit(Limit, frozen=True):
    """A limit as annotations spell it."""

    overcommit_factor: float | None = msgspec.field(default=None, name="overcommitFactor")
    resource_quota: str = msgspec.field(default="", name="resourceQuota")


class _Annotation(Explanation, frozen=True, kw_only=True):
    """The annotation, which names the stage."""

    stage: str
    limits: dict[str, _Limit] = {}  # type: ignore[assignment]


_DECODER = msgspec.json.Decoder(_Annotation)


def decode_explanation(annotation: str) -> Explanation | None:
    """Decode the annotation; None if it is not what a scheduler writes."""
    if not annotation or len(annotation) > MAX_LENGTH:
        return None
    try:
        found = _DECODER.decode(annotation)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None
    return msgspec.convert(found, Explanation, from_attributes=True)
