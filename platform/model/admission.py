"""The seam between an API server and admission rules: what is asked, and how a rule answers.

The embedded API server is handed :class:`Webhook` values by the command line and calls them in its
own process; ``batholith admission`` serves the same values over HTTPS on real Kubernetes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from .names import Resource

Json = dict[str, Any]
"""A decoded JSON object: admission works on raw objects, so that unknown fields survive."""


class ObjectReader(Protocol):
    """Read access to what the server holds; rules that relate objects need it."""

    def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """One object, or ``None``."""
        ...

    def list(self, resource: Resource) -> Iterable[Json]:
        """All objects of a resource, over all namespaces."""
        ...


class AdmissionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A write that wants to be let in; *operation* is CREATE, UPDATE or DELETE."""

    operation: str
    namespace: str
    name: str
    object: Json | None
    """The object as it would be stored; ``None`` for DELETE. Rules must not change it."""
    old_object: Json | None
    """The object as it is stored; ``None`` for CREATE."""
    user: str = ""


class DeniedError(Exception):
    """A rule refuses the write; the text is what the user reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """One admission path of Volcano, e.g. ``/jobs/mutate``, as a pure function."""

    name: str
    """As clients see it in a refusal, e.g. ``mutatejob.volcano.sh``."""
    path: str
    resource: Resource
    operations: frozenset[str]
    mutate: Callable[[AdmissionRequest, ObjectReader], Json] | None = None
    """Returns the object with its defaults filled in (a new dict where anything changed).
    Raises DeniedError."""
    validate: Callable[[AdmissionRequest, ObjectReader], None] | None = None
    """Raises DeniedError."""
