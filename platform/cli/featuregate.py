"""Parse ``--feature-gates``; most of Volcano's gates are fixed at their defaults."""

from collections.abc import Collection, Iterator

from .go_flags import FALSE_VALUES, TRUE_VALUES

QUEUE_GATES = "SchedulingGatesQueueAdmission"
"""The scheduling gate of queues: a pod that requests it is not scheduled before its queue has
capacity."""

UPSTREAM_DEFAULTS = {
    "WorkLoadSupport": True,
    "VolcanoJobSupport": True,
    "CronVolcanoJobSupport": True,
    "QueueCommandSync": True,
    "PriorityClass": True,
    "PodDisruptionBudgetsSupport": True,
    "ResourceTopology": True,
    "CSIStorage": False,
    QUEUE_GATES: False,
}
"""Volcano's gates; fixed at these values unless a command supports the gate."""


class FeatureGateError(ValueError):
    """The text is not a list of feature gates."""


def ineffective_gates(text: str, *, supported: Collection[str] = ()) -> list[str]:
    """Return the gates of *text* that have no effect, *supported* ones excluded.

    Includes Kubernetes' own gates, which are unknown here.

    Raises:
        FeatureGateError: a term is not of the form ``Name=true`` or ``Name=false``.
    """
    return [
        term
        for term, name, enabled in _parse_terms(text)
        if name not in supported and UPSTREAM_DEFAULTS.get(name) is not enabled
    ]


def is_enabled(text: str, gate: str) -> bool:
    """Return whether *text*, or else the default, enables *gate*; the last occurrence wins.

    Raises:
        FeatureGateError: a term is not of the form ``Name=true`` or ``Name=false``.
    """
    return {name: enabled for _, name, enabled in _parse_terms(text)}.get(
        gate, UPSTREAM_DEFAULTS[gate]
    )


def _parse_terms(text: str) -> Iterator[tuple[str, str, bool]]:
    """Yield each term with its name and value."""
    for term in filter(None, (term.strip() for term in text.split(","))):
        name, equals, value = term.partition("=")
        if not equals or not name.isalnum() or value not in TRUE_VALUES | FALSE_VALUES:
            raise FeatureGateError(f"feature gate {term!r} is not Name=true or Name=false")
        yield term, name, value in TRUE_VALUES
