"""Which controllers run: the list after ``--controllers``."""

from collections.abc import Collection

CONTROLLERS = ("job-controller", "queue-controller", "pg-controller")
"""Controllers that can be switched on and off."""

UNSUPPORTED_CONTROLLERS = (
    "gc-controller",
    "jobflow-controller",
    "jobtemplate-controller",
    "cronjob-controller",
    "hyperNode-controller",
    "colocation-config-controller",
    "sharding-controller",
)
"""Names that the reference knows and that start nothing here. What its ``gc-controller`` does, the
job controller does."""

DEFAULT = "*,-sharding-controller"


class SelectionError(ValueError):
    """The list makes no sense."""


def select(text: str) -> Collection[str]:
    """The controllers of ours that *text* switches on.

    Of a name's mentions the first decides (``name`` or ``+name`` on, ``-name`` off); one that is
    not mentioned is on if there is a ``*``, or if the list is empty.

    Raises:
        SelectionError: a name is unknown or stands there twice, or nothing is left to run.
    """
    terms = [term.strip() for term in text.split(",") if term.strip()]
    given = [term.lstrip("+-") for term in terms if term != "*"]
    for name in given:
        if name not in CONTROLLERS and name not in UNSUPPORTED_CONTROLLERS:
            known = ", ".join((*CONTROLLERS, *UNSUPPORTED_CONTROLLERS))
            raise SelectionError(f"there is no controller {name!r}; there are {known}")
        if given.count(name) > 1:
            raise SelectionError(f"controller {name!r} is named more than once")
    chosen = [name for name in CONTROLLERS if _is_enabled(name, terms)]
    if not chosen:
        raise SelectionError(f"{text!r} leaves nothing to run; there are {', '.join(CONTROLLERS)}")
    return chosen


def unsupported(text: str) -> Collection[str]:
    """Controllers that *text* asks for by name and that start nothing here."""
    terms = [term.strip().removeprefix("+") for term in text.split(",")]
    return [name for name in UNSUPPORTED_CONTROLLERS if name in terms and name != "gc-controller"]


def _is_enabled(name: str, terms: Collection[str]) -> bool:
    for term in terms:
        if term in (name, f"+{name}"):
            return True
        if term == f"-{name}":
            return False
    return "*" in terms or not terms
