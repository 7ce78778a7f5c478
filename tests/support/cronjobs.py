"""CronJobs of both kinds and their Jobs, as the controller's decisions see them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from batholith.cron_ctrl import decide as decisions
from batholith.cron_ctrl import kubernetes, volcano
from batholith.cron_ctrl.decide import CronJobView, DeleteJobs, Notify, UpdateStatus
from batholith.cron_ctrl.kind import CronJobKind
from batholith.machinery.reconcile.controller import RequeueAfter
from batholith.machinery.reconcile.events import Event
from batholith.model import times
from batholith.model.cronjob import CronJob, CronJobStatus

START_DELAY = 0.1
"""Seconds after a scheduled time until the reconcile."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Flavour:
    """A kind of CronJobs, with what differs for its tests."""

    kind: CronJobKind[Any]
    ended: Callable[[str, str], Json]
    """The status of a Job that ended as Complete or Failed, at a time."""
    running: Callable[[str], Json]
    """The status of a Job that runs since a time."""
    reasons: Mapping[str, str]
    """Reasons of events, by the names of their functions."""

    def job(self, scheduled: datetime, ended_as: str = "", **metadata: Any) -> Any:
        """The Job of one time; it ended at once, or runs."""
        text, minute = times.format(scheduled), int(scheduled.timestamp() // 60)
        fields = {
            "metadata": {
                "name": f"report-{minute}",
                "namespace": "d",
                "uid": f"job-{minute}",
                "creationTimestamp": text,
                "annotations": {self.kind.scheduled_time: text},
                **metadata,
            },
            "status": self.ended(ended_as, text) if ended_as else self.running(text),
        }
        return msgspec.json.decode(msgspec.json.encode(fields), type=self.kind.job_type)

    def active(self, *jobs: Any) -> Json:
        """A status with these Jobs."""
        return {"active": [msgspec.to_builtins(self.kind.reference(each)) for each in jobs]}


def _ended_job(condition: str, moment: str) -> Json:
    conditions = [{"type": condition, "status": "True"}]
    completion = {"completionTime": moment} if condition == "Complete" else {}
    return {"startTime": moment, "conditions": conditions, **completion}


def _ended_volcano_job(condition: str, moment: str) -> Json:
    phase = {"Complete": "Completed"}.get(condition, condition)
    return {"state": {"phase": phase, "lastTransitionTime": moment}}


KUBERNETES = Flavour(
    kind=kubernetes.KIND,
    ended=_ended_job,
    running=lambda moment: {"startTime": moment},
    reasons={
        "missing": "MissingJob",
        "unexpected": "UnexpectedJob",
        "blocked": "JobAlreadyActive",
        "foreign": "FailedCreate",
        "unknown_zone": "UnknownTimeZone",
        "unparseable": "UnparseableSchedule",
    },
)
VOLCANO = Flavour(
    kind=volcano.KIND,
    ended=_ended_volcano_job,
    running=lambda moment: {"state": {"phase": "Running", "lastTransitionTime": moment}},
    reasons={
        "missing": "StaleReference",
        "unexpected": "OrphanedJob",
        "blocked": "ForbidConcurrent",
        "foreign": "ForeignJob",
        "unknown_zone": "InvalidTimeZone",
        "unparseable": "UnParseableCronJobSchedule",
    },
)
FLAVOURS = {"kubernetes": KUBERNETES, "volcano": VOLCANO}


def cronjob(
    schedule: str = "*/10 * * * *",
    *,
    created: datetime,
    status: Json | None = None,
    **spec: Any,
) -> CronJob:
    """A CronJob with the name ``report``."""
    fields: Json = {
        "metadata": {
            "name": "report",
            "namespace": "d",
            "uid": "u",
            "creationTimestamp": times.format(created),
        },
        "spec": {"schedule": schedule, "concurrencyPolicy": "Allow", "jobTemplate": {}, **spec},
        "status": status or {},
    }
    return msgspec.json.decode(msgspec.json.encode(fields), type=CronJob)


@dataclass
class Decision:
    """The effects of one decision."""

    status: CronJobStatus
    create: datetime | None = None
    replace: tuple[Any, ...] = ()
    changes: tuple[Event, ...] = ()
    notices: tuple[Event, ...] = ()
    delete: tuple[Any, ...] = ()
    requeue_after: float | None = None
    next: datetime | None = None
    """The scheduled time before the next reconcile."""

    @property
    def reasons(self) -> list[str]:
        """Reasons of all events."""
        return [event.reason for event in (*self.changes, *self.notices)]


def decide(
    flavour: Flavour, cronjob: CronJob, jobs: Iterable[Any], now: datetime, **view: Any
) -> Decision:
    """Return what is decided at *now*."""
    decided = Decision(cronjob.status)
    seen = CronJobView(cronjob=cronjob, jobs=[*jobs], now=now, **view)
    for effect in decisions.decide(flavour.kind, seen):
        match effect:
            case RequeueAfter(seconds):
                decided.requeue_after = seconds
                decided.next = now + timedelta(seconds=round(seconds - START_DELAY, 3))
            case Notify(notices):
                decided.notices = notices
            case UpdateStatus(status, start, changes):
                decided.status, decided.changes = status, changes
                if start is not None:
                    decided.create, decided.replace = start.scheduled, start.replaced
            case DeleteJobs(deleted):
                decided.delete = deleted
    return decided
