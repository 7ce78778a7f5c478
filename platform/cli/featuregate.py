"""``--feature-gates``: read and checked; nearly all is always as the reference's defaults."""

from collections.abc import Collection, Iterator

from .go_flags import FALSE_VALUES, TRUE_VALUES

QUEUE_GATES = "SchedulingGatesQueueAdmission"
"""Pods that ask for it are kept behind a scheduling gate until their queue has room."""

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
"""The reference's own gates, as they stand here unless a command heeds them."""


class FeatureGateError(ValueError):
    """The text is no list of gates."""


def ineffective_gates(text: str, *, supported: Collection[str] = ()) -> list[str]:
    """Gates of *text* that ask for something else than what is done; *heeded* ones never do.

    Gates of Kubernetes itself are among them: they are known to its own programs alone.

    Raises:
        GatesError: a term is not of the form ``Name=true`` or ``Name=false``.
    """
    return [
        term
        for term, name, wanted in _parse_terms(text)
        if name not in supported and UPSTREAM_DEFAULTS.get(name) is not wanted
    ]


def is_enabled(text: str, gate: str) -> bool:
    """Whether *text*, or without a word of it the default, opens *gate*; the last word counts.

    Raises:
        GatesError: a term is not of the form ``Name=true`` or ``Name=false``.
    """
    return {name: wanted for _, name, wanted in _parse_terms(text)}.get(
        gate, UPSTREAM_DEFAULTS[gate]
    )


def _parse_terms(text: str) -> Iterator[tuple[str, str, bool]]:
    """Each term, its name, and what it asks for."""
    for term in filter(None, (term.strip() for term in text.split(","))):
        name, equals, value = term.partition("=")
        if not equals or not name.isalnum() or value not in TRUE_VALUES | FALSE_VALUES:
            raise FeatureGateError(f"feature gate {term!r} is not Name=true or Name=false")
        yield term, name, value in TRUE_VALUES
