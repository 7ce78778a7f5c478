"""Events in their newer form, ``events.k8s.io/v1``, which is another view of the core ones.

Both hold the same; fields have other names, and the time is told to the microsecond.
"""

from typing import Any

Json = dict[str, Any]

API_VERSION = "events.k8s.io/v1"

_NAMES = {
    "note": "message",
    "regarding": "involvedObject",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
    "reportingController": "reportingComponent",
}
_BACK = {core: new for new, core in _NAMES.items()}


def to_core(event: Json) -> Json:
    """Return an event of ``events.k8s.io/v1`` as the core event that is stored."""
    if event.get("apiVersion") != API_VERSION:
        return event
    core = {_NAMES.get(key, key): value for key, value in event.items()}
    return {"involvedObject": {}, **core, "apiVersion": "v1"}


def from_core(event: Json) -> Json:
    """Return a stored core event as ``events.k8s.io/v1`` shows it."""
    if event.get("apiVersion") == API_VERSION:
        return event
    shown = {_BACK.get(key, key): value for key, value in event.items()}
    return {**shown, "apiVersion": API_VERSION}
