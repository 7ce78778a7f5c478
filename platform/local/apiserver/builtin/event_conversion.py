"""Conversion between ``events.k8s.io/v1`` Events and the stored core Events.

Both hold the same data; some fields have other names, and times have microseconds.
"""

from typing import Any

from ....model import validation
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
_DEPRECATED = (
    "deprecatedFirstTimestamp", "deprecatedLastTimestamp", "deprecatedCount", "deprecatedSource",
)  # fmt: skip
_DETAILS = ("reportingInstance", "action", "reason")
_MAX_DETAIL, _MAX_NOTE = 128, 1024
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


def detail_errors(event: Json, controller: str, note: str | None) -> list[FieldError]:
    """Validate what an Event with a time must have; *controller* is the name of that field."""
    name = event.get(controller) or ""
    errors = [] if name else [required(controller)]
    if problem := validation.qualified_name_error(name):
        errors.append(invalid(controller, name, problem))
    for key in _DETAILS:
        value = event.get(key) or ""
        if not value:
            errors.append(required(key))
        elif len(value.encode()) > _MAX_DETAIL:
            errors.append(invalid(key, "", f"can have at most {_MAX_DETAIL} characters"))
    if len((note or "").encode()) > _MAX_NOTE:
        errors.append(invalid("message", "", f"can have at most {_MAX_NOTE} characters"))
    return errors


def validate_event(event: Json, old: Json | None) -> list[FieldError]:
    """Validate an ``events.k8s.io/v1`` Event, of which only the series may change."""
    errors: list[FieldError] = []
    if (series := event.get("series")) is not None:
        if series.get("count", 0) < 2:
            errors.append(invalid("series.count", "", "should be at least 2"))
        if not series.get("lastObservedTime"):
            errors.append(required("series.lastObservedTime"))
    if old is None:
        if not event.get("eventTime"):
            errors.append(required("eventTime"))
        errors += detail_errors(event, "reportingController", event.get("note"))
        given = (_NAMES[name] for name in _DEPRECATED if event.get(name))
        errors += [invalid(name, "", "needs to be unset") for name in given]
        if event.get("type") not in ("Normal", "Warning"):
            text = f"has invalid value: {event.get('type', '')}"
            errors.append(invalid("type", "", text))
        return errors
    for name in sorted((event.keys() | old.keys()) - _CHANGING):
        if event.get(name) != old.get(name):
            field = name if name == "reportingController" else _NAMES.get(name, name)
            errors.append(invalid(field, event.get(name, ""), IMMUTABLE))
    return errors
