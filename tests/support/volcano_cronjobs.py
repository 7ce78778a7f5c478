"""Volcano's CronJobs and their Jobs, as the controller's decisions see them."""

from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from batholith.cron_ctrl.core_types import KIND, SCHEDULED_TIME, Job
from batholith.machinery.cronjobs import decide as decisions
from batholith.machinery.cronjobs.objects import CronJob
from batholith.model import times

decide = partial(decisions.schedule, KIND)


def cronjob(
    schedule: str = "*/10 * * * *",
    *,
    created: datetime,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> CronJob:
    """A CronJob with the name ``report``."""
    fields: dict[str, Any] = {
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


def job(scheduled: datetime, phase: str = "Running", **metadata: Any) -> Job:
    """The Job of one time."""
    text = times.format(scheduled)
    minute = int(scheduled.timestamp() // 60)
    fields = {
        "metadata": {
            "name": f"report-{minute}",
            "namespace": "d",
            "uid": f"job-{minute}",
            "creationTimestamp": text,
            "annotations": {SCHEDULED_TIME: text},
            **metadata,
        },
        "status": {"state": {"phase": phase, "lastTransitionTime": text}},
    }
    return msgspec.json.decode(msgspec.json.encode(fields), type=Job)
