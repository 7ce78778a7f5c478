"""Admission request, webhook and reader types shared by API servers and admission rules.

The command line passes :class:`Webhook` values to the embedded API server, which calls them in
process; ``batholith admission`` serves the same values over HTTPS on real Kubernetes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from .names import Resource

Json = dict[str, Any]
"""A decoded JSON object: admission works on raw objects, so that unknown fields survive."""


def nested_object(value: Any, name: str) -> Json:
    """Return the object *name* in *value*, or an empty one."""
    inner = value.get(name) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def nested_list(value: Any, name: str) -> list[Any]:
    """Return the list *name* in *value*, or an empty one."""
    inner = value.get(name) if isinstance(value, dict) else None
    return inner if isinstance(inner, list) else []


class ObjectReader(Protocol):
    """Read access to other objects, for rules that relate objects."""

    def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """Return one object, which must not be modified, or ``None``."""
        ...

    def list(self, resource: Resource) -> Iterable[Json]:
        """Return all objects of a resource in all namespaces; they must not be modified."""
        ...


class AdmissionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A write to admit or deny; *operation* is CREATE, UPDATE or DELETE."""

    operation: str
    namespace: str
    name: str
    object: Json | None
    """The object to be stored; ``None`` for DELETE. Rules must not change it."""
    old_object: Json | None
    """The stored object; ``None`` for CREATE."""
    user: str = ""


class DeniedError(Exception):
    """A rule denies the write; the text is the message to the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """One admission path, e.g. ``/jobs/mutate``, as a pure function."""

    name: str
    """Name in denial messages, e.g. ``mutatejob.volcano.sh``."""
    path: str
    resource: Resource
    operations: frozenset[str]
    mutate: Callable[[AdmissionRequest, ObjectReader], Json] | None = None
    """Return the object with defaults set (new dicts where anything changed).
    Raises DeniedError."""
    validate: Callable[[AdmissionRequest, ObjectReader], None] | None = None
    """Raises DeniedError."""
    warn: Callable[[AdmissionRequest, ObjectReader], list[str]] | None = None
    """Return warnings for the user whose write was admitted."""
