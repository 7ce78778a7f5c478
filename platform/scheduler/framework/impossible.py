"""Why a gang can never run with the queue and the nodes as they are: it needs more of a resource
than exists."""

from dataclasses import dataclass

from ..state.gangs.diagnosis import Diagnosis, FitError, Stage
from ..state.gangs.gang import Gang, QueueInfo
from ..state.resources import Amounts, amounts, format_amount


@dataclass(frozen=True, slots=True)
class Impossible:
    """The limit that the minimum of a gang exceeds even if nothing else runs."""

    message: str
    is_missing: bool = False
    """No node has the resource at all, so that this is the only reason to report."""


def why_impossible(
    gang: Gang,
    diagnosis: Diagnosis,
    fit_error: FitError | None,
    *,
    queue: QueueInfo,
    total: Amounts,
) -> Impossible | None:
    """Return which limit the minimum of *gang* exceeds even if nothing else runs, if any.

    *fit_error* is the one that decided, if the gang was not rejected as a whole; *total* is what
    all nodes together have. The capability of *queue* counts only for a gang that waits for a
    quota: no plugin may enforce it.
    """
    stage = fit_error.stage if fit_error else diagnosis.stage
    needed = {
        name: units for name, units in sorted(gang.min_request.items()) if name != "pods" and units
    }
    if stage is Stage.QUOTA and queue.object is not None:
        capability = amounts(queue.object.spec.capability)
        for name, units in needed.items():
            if units > capability.get(name, units):
                limit = format_amount(name, capability[name])
                text = f"more than the capability {limit} of queue {queue.name!r}"
                return Impossible(f"it needs {format_amount(name, units)} {name}, {text}")
    if stage not in (Stage.QUOTA, Stage.NODES) or not total:
        return None
    for name, units in needed.items():
        if units > total.get(name, 0):
            text = f"it needs {format_amount(name, units)} {name}"
            if not total.get(name):
                return Impossible(f"{text}, and no node has any", is_missing=True)
            most = format_amount(name, total[name])
            return Impossible(f"{text}, more than the {most} of all nodes together")
    if diagnosis.exceeds_nodes:
        return Impossible("all nodes together could not take its pods even if nothing else ran")
    return None
