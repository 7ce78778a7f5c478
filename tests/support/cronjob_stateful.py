"""The controllers of CronJobs in a simulated cluster, for random histories, and their invariants.

INV-CRON-1: no scheduled time is started twice, and none early.
INV-CRON-2: no time is lost, except those that the deadline, a later missed time, ``Forbid`` or
``suspend`` exclude.
INV-CRON-3: with ``Forbid`` a Job starts only while none is active; with ``Replace`` the active one
is deleted first, and no other unfinished Job is.
INV-CRON-4: ``status.active`` has exactly the unfinished Jobs of the schedule; the times in the
status never decrease.
INV-CRON-5: a Job is deleted only after its time is in the status, beyond the history limits or to
be replaced.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from support.inmemory_api import InMemoryClient
from support.virtual_controller import CheckedWorld

from batholith.cron_ctrl import kubernetes, volcano
from batholith.cron_ctrl.controller import CronJobController, CronJobSettings
from batholith.cron_ctrl.kind import CronJobKind
from batholith.machinery import cron
from batholith.model import times
from batholith.model.cronjob import CronJob

Object = dict[str, Any]

SETTINGS = CronJobSettings(workers=2, time_zone=UTC)


def owner_of(job: Object) -> str:
    """Uid of the CronJob that controls it."""
    return next((each["uid"] for each in job["metadata"].get("ownerReferences", [])), "")


class CronJobWorld(CheckedWorld[CronJobController[Any]]):
    """The server with at most one CronJob controller, and what others do."""

    kind: CronJobKind[Any]

    def __init__(self) -> None:
        super().__init__()
        self.api.objects(self.kind.jobs)
        self.started: dict[str, list[str]] = {}
        """Names of the Jobs created, by uid of the CronJob."""
        self.changed_at: dict[str, datetime] = {}
        """When a controller last saw that the schedule was changed, by uid.

        Not when it was written: the spec does not show that, and the watch may be late.
        """

        self._policies: dict[str, set[str]] = {}
        """Concurrency policies since the last rest, by uid: a controller may know any of them."""

    def make_controller(self, client: InMemoryClient) -> CronJobController[Any]:
        """A new CronJob controller."""
        controller = CronJobController(
            client, self.kind, settings=SETTINGS, clock=self.clock, recorder=self.recorder
        )
        controller.cronjobs.informer.add_event_handler(self._on_observed)
        return controller

    def is_finished(self, job: Object) -> bool:
        """Whether a Job has ended."""
        raise NotImplementedError

    def outcome(self, job: Object) -> str:
        """``successful`` or ``failed``, of a Job that has ended."""
        raise NotImplementedError

    def finish(self, job: Object, *, failed: bool = False) -> None:
        """The Job controller reports the end of a Job."""
        raise NotImplementedError

    # What there is.

    @property
    def cronjobs(self) -> dict[str, Object]:
        """By name."""
        objects = self.api.objects(self.kind.cronjobs).values()
        return {each["metadata"]["name"]: each for each in objects}

    def jobs(self, cronjob: Object) -> list[Object]:
        """The Jobs that it controls."""
        uid = cronjob["metadata"]["uid"]
        return [job for job in self.api.objects(self.kind.jobs).values() if owner_of(job) == uid]

    def scheduled_jobs(self, cronjob: Object) -> list[Object]:
        """Those that the controller has created."""
        return [
            job
            for job in self.jobs(cronjob)
            if self.kind.scheduled_time in job["metadata"].get("annotations", {})
        ]

    @property
    def minute(self) -> int:
        """The minute whose scheduled times have been handled when all is quiet."""
        return int(self.clock.now().timestamp() - 1) // 60

    def was_changed(self, cronjob: Object) -> bool:
        """Whether no time was due since its schedule was changed.

        Then a new controller does not know about the change, and starts an earlier time.
        """
        until = self.clock.now() - timedelta(seconds=1)
        schedule = cron.parse(cronjob["spec"]["schedule"])
        since = self.changed_at.get(_uid(cronjob))
        return since is not None and schedule.missed(since, until) is None

    # What users and the Job controller do.

    def put_cronjob(self, name: str, **spec: Any) -> None:
        """Create or update a CronJob."""
        old = self.cronjobs.get(name, {}).get("spec", {})
        template = {"metadata": {"labels": {"app": name}}, "spec": {"backoffLimit": 1}}
        defaults = {"jobTemplate": template, "concurrencyPolicy": "Allow"}
        stored = self.api.put(self.kind.cronjobs, name, spec={**({} if old else defaults), **spec})
        self._policies.setdefault(_uid(stored), set()).add(stored["spec"]["concurrencyPolicy"])

    def remove_cronjob(self, name: str) -> None:
        """Delete a CronJob with its Jobs."""
        for job in self.jobs(self.cronjobs[name]):
            self.api.force_delete(self.kind.jobs, job["metadata"]["name"])
        self.api.force_delete(self.kind.cronjobs, name)

    def put_manual_job(self, name: str, cronjob: str) -> None:
        """``kubectl create job NAME --from=cronjob/CRONJOB``."""
        owner = {
            "apiVersion": self.kind.cronjobs.api_version,
            "kind": "CronJob",
            "name": cronjob,
            "uid": self.cronjobs[cronjob]["metadata"]["uid"],
            "controller": True,
        }
        manual = {"cronjob.kubernetes.io/instantiate": "manual"}
        self.api.put(
            self.kind.jobs, name, metadata={"annotations": manual, "ownerReferences": [owner]}
        )

    # What happens.

    def _on_observed(self, old: CronJob | None, new: CronJob | None) -> None:
        if old is not None and new is not None and old.spec.schedule != new.spec.schedule:
            self.changed_at[new.metadata.uid] = self.clock.now()

    def _check(self, prefix: str, change: str, new: Object, old: Object) -> None:
        if prefix == self.kind.jobs.path():
            self._check_job(change, new)
        else:
            self._check_status(prefix, change, new, old)

    def _check_job(self, change: str, job: Object) -> None:
        meta = job["metadata"]
        owners = [each for each in self.cronjobs.values() if owner_of(job) == _uid(each)]
        if change == "DELETED":
            assert self.api.received[-1].body["preconditions"]["uid"] == meta["uid"]
            for owner in owners:
                last = owner.get("status", {}).get("lastScheduleTime", "")
                ended = self.is_finished(job)
                scheduled = meta["annotations"].get(self.kind.scheduled_time)
                recorded = not scheduled or scheduled <= last
                assert recorded or not ended, f"INV-CRON-5: {meta['name']} is not recorded"
                replaced = "Replace" in self._policies[_uid(owner)]
                assert ended or replaced, f"INV-CRON-3: {meta['name']} has not ended"
            return
        assert change == "ADDED", f"{meta['name']} is {change}"
        scheduled = times.parse(meta["annotations"][self.kind.scheduled_time])
        assert scheduled <= self.clock.now(), f"INV-CRON-1: {meta['name']} is too early"
        started = self.started.setdefault(owner_of(job), [])
        assert meta["name"] not in started, f"INV-CRON-1: {meta['name']} is started twice"
        started.append(meta["name"])
        for owner in owners:
            self._check_start(owner, job, scheduled)

    def _check_start(self, cronjob: Object, job: Object, scheduled: datetime) -> None:
        meta, name = job["metadata"], job["metadata"]["name"]
        assert name == f"{cronjob['metadata']['name']}-{int(scheduled.timestamp()) // 60}"
        assert meta["labels"] == {"app": cronjob["metadata"]["name"]}
        assert job["spec"] == cronjob["spec"]["jobTemplate"]["spec"]
        if self._policies[_uid(cronjob)] == {"Forbid"}:
            others = [one for one in self.scheduled_jobs(cronjob) if one["metadata"] != meta]
            assert all(self.is_finished(one) for one in others), (
                f"INV-CRON-3: {name} runs concurrently"
            )

    def _check_status(self, prefix: str, change: str, new: Object, old: Object) -> None:
        assert prefix == self.kind.cronjobs.path(), f"{prefix} is written"
        assert change == "MODIFIED", f"a CronJob is {change}"
        assert new["spec"] == old["spec"], "the spec is written"
        for field in ("lastScheduleTime", "lastSuccessfulTime"):
            before, after = (one.get("status", {}).get(field, "") for one in (old, new))
            assert after >= before, f"INV-CRON-4: {field} decreases from {before} to {after}"

    # At rest.

    def check_invariants(self) -> None:
        """Check that all is as it should be when the controller has nothing left to do.

        Raises:
            AssertionError: it is not.
        """
        for cronjob in self.cronjobs.values():
            self._policies[_uid(cronjob)] = {cronjob["spec"]["concurrencyPolicy"]}
            status = cronjob.get("status", {})
            unfinished = {
                job["metadata"]["uid"]
                for job in self.scheduled_jobs(cronjob)
                if not self.is_finished(job) and "deletionTimestamp" not in job["metadata"]
            }
            active = {reference["uid"] for reference in status.get("active", [])}
            assert active == unfinished, f"INV-CRON-4: {active}, not {unfinished}"
            self._check_history(cronjob)
            self._check_latest(cronjob)

    def _check_history(self, cronjob: Object) -> None:
        finished = [self.outcome(job) for job in self.jobs(cronjob) if self.is_finished(job)]
        for outcome in ("successful", "failed"):
            limit = cronjob["spec"].get(f"{outcome}JobsHistoryLimit")
            assert limit is None or finished.count(outcome) <= limit, finished

    def _check_latest(self, cronjob: Object) -> None:
        """The latest time has been started, if nothing is in its way."""
        spec, meta = cronjob["spec"], cronjob["metadata"]
        blocked = spec["concurrencyPolicy"] == "Forbid" and cronjob.get("status", {}).get("active")
        late = spec.get("startingDeadlineSeconds") is not None
        if blocked or late or spec.get("suspend") or spec["schedule"].startswith("@every"):
            return
        created = times.parse(meta["creationTimestamp"])
        since = max(created, self.changed_at.get(_uid(cronjob), created))
        until = self.clock.now() - timedelta(seconds=1)
        missed = cron.parse(spec["schedule"]).missed(since, until)
        last = cronjob.get("status", {}).get("lastScheduleTime")
        if missed is not None and (last is None or times.parse(last) < missed.latest):
            raise AssertionError(f"INV-CRON-2: {meta['name']}: {missed.latest}, but {last}")


def _uid(cronjob: Object) -> str:
    uid: str = cronjob["metadata"]["uid"]
    return uid


class KubernetesCronJobWorld(CronJobWorld):
    """CronJobs of batch/v1."""

    kind = kubernetes.KIND

    def is_finished(self, job: Object) -> bool:
        """Whether a Job has ended."""
        return bool(self._condition(job))

    def outcome(self, job: Object) -> str:
        """``successful`` or ``failed``, of a Job that has ended."""
        return "successful" if self._condition(job) == "Complete" else "failed"

    def finish(self, job: Object, *, failed: bool = False) -> None:
        """The Job controller reports the end of a Job."""
        condition = "Failed" if failed else "Complete"
        status: Object = {"conditions": [{"type": condition, "status": "True"}]}
        if not failed:
            status["completionTime"] = self.api.now()
        self.api.put(self.kind.jobs, job["metadata"]["name"], status=status)

    @staticmethod
    def _condition(job: Object) -> str:
        conditions = job.get("status", {}).get("conditions", [])
        names = (each["type"] for each in conditions)
        return next((each for each in names if each in ("Complete", "Failed")), "")


class VolcanoCronJobWorld(CronJobWorld):
    """Volcano's CronJobs."""

    kind = volcano.KIND

    def is_finished(self, job: Object) -> bool:
        """Whether a Job has ended."""
        return self._phase(job) in ("Completed", "Failed", "Terminated")

    def outcome(self, job: Object) -> str:
        """``successful`` or ``failed``, of a Job that has ended."""
        return "successful" if self._phase(job) == "Completed" else "failed"

    def finish(self, job: Object, *, failed: bool = False) -> None:
        """The Job controller reports the end of a Job; every second failed one was terminated."""
        name = job["metadata"]["name"]
        phase = ("Failed", "Terminated")[int(name[-1], 36) % 2] if failed else "Completed"
        state = {"phase": phase, "lastTransitionTime": self.api.now()}
        self.api.put(self.kind.jobs, name, status={"state": state})

    @staticmethod
    def _phase(job: Object) -> str:
        phase: str = job.get("status", {}).get("state", {}).get("phase", "")
        return phase


WORLDS: Mapping[str, type[CronJobWorld]] = {
    "kubernetes": KubernetesCronJobWorld,
    "volcano": VolcanoCronJobWorld,
}
"""By kind of CronJobs."""
