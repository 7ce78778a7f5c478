"""The explanation of a waiting gang: the JSON of the PodGroup annotation ``batholith.io/why``.

It answers for programs what the Unschedulable condition answers for people; the condition's message
is its ``message``. Quantities have the units of the pods' requests. An explanation is at most
:data:`MAX_BYTES` long: names of nodes, reasons and resources are what is left out first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ..state.diagnosis import Diagnosis, FitError, NodeFit, Shortage
from ..state.gangs import Gang
from ..state.resources import format_amount

MAX_BYTES = 4096
"""Maximum length of an explanation."""

_MAX_MESSAGE = 1024
_MAX_REASON = 160
_MAX_ENTRIES = 10
"""Reasons, and resources, that are listed."""


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """Where a gang waits."""

    queue: str
    position: int | None = None
    """Its rank among the waiting gangs of the queue, from 1; ``None`` for a pod without queue."""

    waiting: int | None = None
    """How many gangs wait in the queue."""


def encode(gang: Gang, diagnosis: Diagnosis, message: str, where: QueuePosition) -> str:
    """Return the explanation of *gang*, whose condition has *message*, as JSON."""
    fit_error = _decisive(diagnosis)
    stage = fit_error.stage if fit_error else diagnosis.stage
    shortages = fit_error.shortages if fit_error else diagnosis.shortages
    explanation: dict[str, object] = {
        "stage": stage,
        "reason": _shortened(diagnosis.reason, _MAX_REASON),
        "message": _shortened(message, _MAX_MESSAGE),
        "queue": _queue(where),
        "pods": _pods(gang, diagnosis),
    }
    if shortages:
        explanation["limits"] = _limits(shortages)
    if fit_error is not None:
        explanation["pod"] = fit_error.task_name
        if fit_error.nodes is not None:
            explanation["nodes"] = _nodes(fit_error.nodes)
    encoded = msgspec.json.encode(explanation)
    for optional in ("nodes", "limits", "message"):
        if len(encoded) <= MAX_BYTES:
            break
        explanation.pop(optional, None)
        encoded = msgspec.json.encode(explanation)
    return encoded.decode()


def _decisive(diagnosis: Diagnosis) -> FitError | None:
    """Return the fit error that decided, if the gang was not rejected as a whole."""
    return None if diagnosis.message else next(iter(diagnosis.fit_errors.values()), None)


def _queue(where: QueuePosition) -> dict[str, object]:
    found: dict[str, object] = {"name": where.queue}
    if where.position is not None:
        found |= {"position": where.position, "waiting": where.waiting}
    return found


def _pods(gang: Gang, diagnosis: Diagnosis) -> dict[str, int]:
    """Return how many pods the gang needs at least, exist, are placed, and would fit now."""
    return {
        "needed": gang.min_member,
        "existing": gang.counts.valid,
        "ready": gang.counts.ready,
        "fitting": len(diagnosis.fitting_uids),
    }


def _limits(shortages: Sequence[Shortage]) -> dict[str, dict[str, object]]:
    limits = {}
    for each in shortages[:_MAX_ENTRIES]:
        entry: dict[str, object] = {
            "requested": format_amount(each.resource, each.requested),
            "limit": format_amount(each.resource, each.limit),
            "used": format_amount(each.resource, each.used),
        }
        if each.factor != 1:
            entry["overcommitFactor"] = each.factor
        limits[each.resource] = entry
    return limits


def _nodes(fit: NodeFit) -> dict[str, object]:
    by_count = sorted(fit.excluded.items(), key=lambda item: (-item[1], item[0]))
    nodes: dict[str, object] = {
        "total": fit.total,
        "excluded": {
            _shortened(reason, _MAX_REASON): count for reason, count in by_count[:_MAX_ENTRIES]
        },
    }
    if fit.nearest is not None:
        nearest: dict[str, object] = {"name": fit.nearest.name}
        if fit.nearest.lacks:
            nearest["lacks"] = _lacks(fit.nearest.lacks)
        if fit.nearest.reason:
            nearest["reason"] = _shortened(fit.nearest.reason, _MAX_REASON)
        nodes["nearest"] = nearest
    return nodes


def _lacks(lacks: Mapping[str, tuple[int, int]]) -> dict[str, dict[str, str]]:
    return {
        name: {"requested": format_amount(name, requested), "free": format_amount(name, free)}
        for name, (requested, free) in list(lacks.items())[:_MAX_ENTRIES]
    }


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
