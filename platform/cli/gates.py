"""``--feature-gates``: read and checked; here everything is always as the reference's defaults."""

from .flags import FALSE, TRUE

FIXED = {
    "WorkLoadSupport": True,
    "VolcanoJobSupport": True,
    "CronVolcanoJobSupport": True,
    "QueueCommandSync": True,
    "PriorityClass": True,
    "PodDisruptionBudgetsSupport": True,
    "ResourceTopology": True,
    "CSIStorage": False,
    "SchedulingGatesQueueAdmission": False,
}
"""The reference's own gates, as they stand here."""


class GatesError(ValueError):
    """The text is no list of gates."""


def without_effect(text: str) -> list[str]:
    """Gates of *text* that ask for something else than what is done.

    Gates of Kubernetes itself are among them: they are known to its own programs alone.

    Raises:
        GatesError: a term is not of the form ``Name=true`` or ``Name=false``.
    """
    found = []
    for term in filter(None, (term.strip() for term in text.split(","))):
        name, equals, value = term.partition("=")
        if not equals or not name.isalnum() or value not in TRUE | FALSE:
            raise GatesError(f"feature gate {term!r} is not Name=true or Name=false")
        if FIXED.get(name) is not (value in TRUE):
            found.append(term)
    return found
