"""The explanation of a waiting gang: the JSON of the PodGroup annotation ``batholith.io/why``.

It is for programs what the Unschedulable condition is for people; ``message`` is the message of
that condition. Quantities have the units of the pods' requests. An explanation is at most
:data:`MAX_BYTES` long: the nodes, the limits and the message are left out first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from ...model import times
from ..state.gangs.diagnosis import (
    BudgetUse,
    Diagnosis,
    DomainFit,
    FitError,
    NodeFit,
    Shortage,
)
from ..state.gangs.start_estimate import StartEstimate
from ..state.resources import format_amount

MAX_BYTES = 4096
"""Maximum length of an explanation."""

_MAX_MESSAGE = 1024
_MAX_REASON = 160
_MAX_ENTRIES = 10
"""Reasons, and resources, that are listed."""

_POSITION_KEYS = ("position", "waiting")
_POSITION_BYTES = 64
"""Maximum length of those."""


@dataclass(frozen=True, slots=True)
class GangExplanation:
    """Why a gang waits. Two are equal if they differ in the position in the queue only."""

    diagnosis: Diagnosis
    fit_error: FitError | None
    """The one that decided, unless the gang was rejected as a whole."""

    message: str
    queue: str
    needed: int
    """How many pods the gang needs at least."""

    existing: int
    """How many of its pods exist and have neither failed nor been deleted."""

    ready: int
    """How many of them are allocated or have succeeded."""

    position: int | None = field(default=None, compare=False)
    """Rank among the waiting gangs of the queue, from 1."""

    waiting: int | None = field(default=None, compare=False)
    """How many gangs wait in the queue."""

    start: StartEstimate | None = field(default=None, compare=False)
    """When the gang starts, if that is planned."""

    def is_same_as(self, written: "GangExplanation | None") -> bool:
        """Return whether *written* need not be replaced by this one: they differ at most in the
        position in the queue, and by little in the start."""
        if written is None or self != written:
            return False
        return self.start is written.start or (
            self.start is not None and self.start.is_close_to(written.start)
        )

    def encode(self) -> str:
        """Return the explanation as JSON."""
        queue: dict[str, object] = {"name": self.queue}
        if self.position is not None:
            queue |= {"position": self.position, "waiting": self.waiting}
        return self._encode(queue).decode()

    def is_shown_by(self, annotation: str) -> bool:
        """Return whether *annotation* is this explanation, apart from the position."""
        try:
            shown = msgspec.json.decode(annotation)
        except (msgspec.MsgspecError, RecursionError):  # users may write it, too
            return False
        if not isinstance(shown, dict) or not isinstance(shown.get("queue"), dict):
            return False
        shown["queue"] = {
            key: value for key, value in shown["queue"].items() if key not in _POSITION_KEYS
        }
        return msgspec.json.encode(shown) == self._encode({"name": self.queue})

    def _encode(self, queue: Mapping[str, object]) -> bytes:
        diagnosis, fit_error = self.diagnosis, self.fit_error
        shortages = fit_error.shortages if fit_error else diagnosis.shortages
        explanation: dict[str, object] = {
            "stage": fit_error.stage if fit_error else diagnosis.stage,
            "reason": _shortened(diagnosis.reason, _MAX_REASON),
            "message": _shortened(self.message, _MAX_MESSAGE),
            "queue": queue,
            **({"start": _start(self.start)} if self.start is not None else {}),
            "pods": {
                "needed": self.needed,
                "existing": self.existing,
                "ready": self.ready,
                "fitting": len(diagnosis.fitting_uids),
            },
        }
        if diagnosis.budget is not None:
            explanation["budget"] = _budget(diagnosis.budget)
        if shortages:
            explanation["limits"] = _limits(shortages)
        if fit_error is not None:
            explanation["pod"] = fit_error.task_name
            if fit_error.sub_group:
                explanation["subGroup"] = _shortened(fit_error.sub_group, _MAX_REASON)
            if fit_error.nodes is not None:
                explanation["nodes"] = _nodes(fit_error.nodes)
            if fit_error.domains is not None:
                explanation["topology"] = _topology(fit_error.domains)
        for optional in ("", "nodes", "limits", "message"):
            explanation.pop(optional, None)
            encoded = msgspec.json.encode(explanation)
            if len(encoded) <= MAX_BYTES - _POSITION_BYTES:
                break
        return encoded


def _start(estimate: StartEstimate) -> dict[str, object]:
    start: dict[str, object] = {"earliest": _time(estimate.earliest), "basis": estimate.basis}
    for name in ("expected", "latest"):
        known: float | None = getattr(estimate, name)
        if known is not None:
            start[name] = _time(known)
    return start


def _time(seconds: float) -> str:
    return times.format(datetime.fromtimestamp(seconds, UTC))


def _budget(use: BudgetUse) -> dict[str, object]:
    return {
        "queue": use.queue,
        "resource": use.resource,
        "used": format_amount(use.resource, use.used),
        "limit": format_amount(use.resource, use.limit),
        "until": _time(use.until),
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
        if each.queue:
            entry["queue"] = each.queue
        if each.resource_quota:
            entry["resourceQuota"] = each.resource_quota
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


def _topology(fit: DomainFit) -> dict[str, object]:
    topology: dict[str, object] = {"highestTier": _shortened(fit.highest_tier, _MAX_REASON)}
    if fit.nearest:
        nearest = {"name": fit.nearest, "needed": fit.needed, "fitting": fit.fitting}
        topology["nearest"] = nearest
    return topology


def _lacks(lacks: Mapping[str, tuple[int, int]]) -> dict[str, dict[str, str]]:
    return {
        name: {"requested": format_amount(name, requested), "free": format_amount(name, free)}
        for name, (requested, free) in list(lacks.items())[:_MAX_ENTRIES]
    }


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
