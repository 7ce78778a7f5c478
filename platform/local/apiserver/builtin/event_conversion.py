"""Conversion between ``events.k8s.io/v1`` Events and the stored core Events.

Both hold the same data; some fields have other names, and times have microseconds.
"""

from typing import Any

from ..errors.fields import IMMUTABLE, FieldError, invalid, required

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
_REQUIRED = ("reportingController", "reportingInstance", "action", "reason", "eventTime")
_CHANGING = frozenset(("apiVersion", "kind", "metadata", "series"))
_BACK = {core: new for new, core in _NAMES.items()}


def to_core(event: Json) -> Json:
    """Convert an ``events.k8s.io/v1`` Event to the core Event to store."""
    if event.get("apiVersion") != API_VERSION:
        return event
    core = {_NAMES.get(key, key): value for key, value in event.items()}
    return {"involvedObject": {}, **core, "apiVersion": "v1"}


def from_core(event: Json) -> Json:
    """Convert a stored core Event to ``events.k8s.io/v1``."""
    if event.get("apiVersion") == API_VERSION:
        return event
    shown = {_BACK.get(key, key): value for key, value in event.items()}
    return {**shown, "apiVersion": API_VERSION}


def validate_event(event: Json, old: Json | None) -> list[FieldError]:
    """Validate an ``events.k8s.io/v1`` Event, of which only the series may change."""
    errors: list[FieldError] = []
    if (event.get("series") or {}).get("count", 2) < 2:
        errors.append(invalid("series.count", "", "should be at least 2"))
    if old is None:
        errors += [required(name) for name in _REQUIRED if not event.get(name)]
        if not event.get("reportingController"):
            errors.append(invalid("reportingController", "", "name part must be non-empty"))
        if event.get("type") not in ("Normal", "Warning"):
            text = f"has invalid value: {event.get('type', '')}"
            errors.append(invalid("type", "", text))
        return errors
    for name in sorted((event.keys() | old.keys()) - _CHANGING):
        if event.get(name) != old.get(name):
            field = name if name == "reportingController" else _NAMES.get(name, name)
            errors.append(invalid(field, event.get(name, ""), IMMUTABLE))
    return errors
