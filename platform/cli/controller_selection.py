"""Parse ``--controllers``, the list of enabled controllers."""

from collections.abc import Collection

BATCH_JOB = "batch-job-controller"
BATCH_CRON_JOB = "batch-cronjob-controller"
TRAINING = "training-controller"
HYPERNODE = "hyperNode-controller"

JOB_SUSPENSION = "job-suspension-controller"
JOBSET_SUSPENSION = "jobset-suspension-controller"
TRAINJOB_SUSPENSION = "trainjob-suspension-controller"
RAYJOB_SUSPENSION = "rayjob-suspension-controller"
SUSPENSION = (JOB_SUSPENSION, JOBSET_SUSPENSION, TRAINJOB_SUSPENSION, RAYJOB_SUSPENSION)

OFF_BY_DEFAULT = (BATCH_JOB, BATCH_CRON_JOB, TRAINING, *SUSPENSION)
"""Controllers that run only if they are named, since most clusters have another controller for
their objects, or because they need more rights."""

CONTROLLERS = (
    "job-controller",
    "jobflow-controller",
    "jobtemplate-controller",
    "queue-controller",
    "pg-controller",
    "cronjob-controller",
    HYPERNODE,
    *OFF_BY_DEFAULT,
)
"""Controllers that can be enabled and disabled."""

UNSUPPORTED_CONTROLLERS = (
    "gc-controller",
    "colocation-config-controller",
    "sharding-controller",
)
"""Volcano's controllers that Batholith does not have. The job controller does the work of
``gc-controller``."""

DEFAULT = "*,-sharding-controller"


class SelectionError(ValueError):
    """The list is invalid."""


def select(text: str) -> Collection[str]:
    """Return the controllers that *text* enables.

    ``name`` and ``+name`` enable, ``-name`` disables; unnamed controllers are enabled if the list
    contains ``*`` or is empty, unless they are off by default.

    Raises:
        SelectionError: a name is unknown or repeated, or no controller is enabled.
    """
    terms = [term.strip() for term in text.split(",") if term.strip()]
    given = [term.lstrip("+-") for term in terms if term != "*"]
    for name in given:
        if name not in CONTROLLERS and name not in UNSUPPORTED_CONTROLLERS:
            known = ", ".join((*CONTROLLERS, *UNSUPPORTED_CONTROLLERS))
            raise SelectionError(f"unknown controller {name!r}; known: {known}")
        if given.count(name) > 1:
            raise SelectionError(f"controller {name!r} is named more than once")
    enabled = [name for name in CONTROLLERS if _is_enabled(name, terms)]
    if not enabled:
        raise SelectionError(f"{text!r} enables no controller; known: {', '.join(CONTROLLERS)}")
    return enabled


def select_embedded(text: str) -> Collection[str]:
    """Return the controllers that *text* enables in an embedded cluster, where ``*`` means all.

    Raises:
        SelectionError: as `select`.
    """
    terms = [term.strip() for term in text.split(",")]
    if "*" not in terms:
        return select(text)
    named = {term.lstrip("+-") for term in terms}
    return select(",".join((*terms, *(name for name in OFF_BY_DEFAULT if name not in named))))


def unsupported(text: str) -> Collection[str]:
    """Return the controllers that *text* enables by name and that are not supported."""
    terms = [term.strip().removeprefix("+") for term in text.split(",")]
    return [name for name in UNSUPPORTED_CONTROLLERS if name in terms and name != "gc-controller"]


def _is_enabled(name: str, terms: Collection[str]) -> bool:
    for term in terms:
        if term in (name, f"+{name}"):
            return True
        if term == f"-{name}":
            return False
    return name not in OFF_BY_DEFAULT and ("*" in terms or not terms)
