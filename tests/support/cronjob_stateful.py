"""The CronJob controller in a simulated cluster, for random histories, and its invariants."""

from datetime import UTC, datetime, timedelta
from typing import Any

from support.inmemory_api import InMemoryClient
from support.virtual_controller import CheckedWorld

from batholith.batch_ctrl.cronjobs.controller import CronJobController
from batholith.batch_ctrl.cronjobs.core_types import SCHEDULED_TIME
from batholith.machinery import cron
from batholith.machinery.cronjobs.controller import CronJobSettings
from batholith.model import times
from batholith.model.names import BATCH_CRONJOBS, BATCH_JOBS

Object = dict[str, Any]

SETTINGS = CronJobSettings(workers=2, time_zone=UTC)


def owner_of(job: Object) -> str:
    """Uid of the CronJob that controls it."""
    return next((each["uid"] for each in job["metadata"].get("ownerReferences", [])), "")


def is_finished(job: Object) -> bool:
    conditions = job.get("status", {}).get("conditions", [])
    return any(each["type"] in ("Complete", "Failed") for each in conditions)


class CronJobWorld(CheckedWorld[CronJobController]):
    """The server with at most one CronJob controller, and what others do."""

    def __init__(self) -> None:
        super().__init__()
        self.api.objects(BATCH_JOBS)
        self.api.on_change = self._on_event
        self.started: dict[str, list[str]] = {}
        """Names of the Jobs created, by uid of the CronJob."""
        self.changed_at: dict[str, datetime] = {}
        """When a user last wrote the schedule, by uid."""

        self._known_policies: dict[str, str] = {}
        """Concurrency policies at the last rest, by uid: a controller may not know later ones."""

    def make_controller(self, client: InMemoryClient) -> CronJobController:
        """A new CronJob controller."""
        return CronJobController(
            client, settings=SETTINGS, clock=self.clock, recorder=self.recorder
        )

    # What there is.

    @property
    def cronjobs(self) -> dict[str, Object]:
        """By name."""
        objects = self.api.objects(BATCH_CRONJOBS).values()
        return {each["metadata"]["name"]: each for each in objects}

    def jobs(self, cronjob: Object) -> list[Object]:
        """The Jobs that it controls."""
        uid = cronjob["metadata"]["uid"]
        return [job for job in self.api.objects(BATCH_JOBS).values() if owner_of(job) == uid]

    def scheduled_jobs(self, cronjob: Object) -> list[Object]:
        """Those that the controller has created."""
        return [
            job
            for job in self.jobs(cronjob)
            if SCHEDULED_TIME in job["metadata"].get("annotations", {})
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
        schedule, since = cron.parse(cronjob["spec"]["schedule"]), self.changed_at[_uid(cronjob)]
        created = times.parse(cronjob["metadata"]["creationTimestamp"])
        return since > created and schedule.missed(since, until) is None

    # What users and the Job controller do.

    def put_cronjob(self, name: str, **spec: Any) -> None:
        """Create or update a CronJob."""
        old = self.cronjobs.get(name, {}).get("spec", {})
        template = {"metadata": {"labels": {"app": name}}, "spec": {"backoffLimit": 1}}
        defaults = {"jobTemplate": template, "concurrencyPolicy": "Allow"}
        stored = self.api.put(BATCH_CRONJOBS, name, spec={**({} if old else defaults), **spec})
        if stored["spec"]["schedule"] != old.get("schedule"):
            self.changed_at[stored["metadata"]["uid"]] = self.clock.now()

    def remove_cronjob(self, name: str) -> None:
        """Delete a CronJob with its Jobs."""
        for job in self.jobs(self.cronjobs[name]):
            self.api.force_delete(BATCH_JOBS, job["metadata"]["name"])
        self.api.force_delete(BATCH_CRONJOBS, name)

    def put_manual_job(self, name: str, cronjob: str) -> None:
        """``kubectl create job NAME --from=cronjob/CRONJOB``."""
        owner = {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "name": cronjob,
            "uid": self.cronjobs[cronjob]["metadata"]["uid"],
            "controller": True,
        }
        manual = {"cronjob.kubernetes.io/instantiate": "manual"}
        self.api.put(BATCH_JOBS, name, metadata={"annotations": manual, "ownerReferences": [owner]})

    def finish(self, job: Object, condition: str) -> None:
        """The Job controller reports the end of a Job."""
        now = self.api.now()
        status: Object = {"conditions": [{"type": condition, "status": "True"}]}
        if condition == "Complete":
            status["completionTime"] = now
        self.api.put(BATCH_JOBS, job["metadata"]["name"], status=status)

    # What happens.

    def _on_event(self, prefix: str, change: str, new: Object, old: Object | None) -> None:
        if not self.api.requesting_client:
            return
        self.controller_writes += 1
        try:
            if prefix == BATCH_JOBS.path():
                self._check_job(change, new)
            else:
                self._check_status(prefix, change, new, old or {})
        except AssertionError as error:
            self.violations.append(f"{error}")

    def _check_job(self, change: str, job: Object) -> None:
        meta = job["metadata"]
        owners = [each for each in self.cronjobs.values() if owner_of(job) == _uid(each)]
        if change == "DELETED":
            assert self.api.received[-1].body["preconditions"]["uid"] == meta["uid"]
            for owner in owners:
                last = owner.get("status", {}).get("lastScheduleTime", "")
                ended = is_finished(job)
                scheduled = meta["annotations"].get(SCHEDULED_TIME)
                recorded = not scheduled or scheduled <= last
                assert recorded or not ended, f"{meta['name']} is deleted before it is recorded"
                replaced = "Replace" in (
                    owner["spec"]["concurrencyPolicy"],
                    self._known_policies.get(_uid(owner)),
                )
                assert ended or replaced, f"{meta['name']} has not ended and is deleted"
            return
        assert change == "ADDED", f"{meta['name']} is {change}"
        scheduled = times.parse(meta["annotations"][SCHEDULED_TIME])
        assert scheduled <= self.clock.now(), f"{meta['name']} is too early"
        started = self.started.setdefault(owner_of(job), [])
        assert meta["name"] not in started, f"{meta['name']} is started twice"
        started.append(meta["name"])
        for owner in owners:
            self._check_start(owner, job, scheduled)

    def _check_start(self, cronjob: Object, job: Object, scheduled: datetime) -> None:
        meta, name = job["metadata"], job["metadata"]["name"]
        assert name == f"{cronjob['metadata']['name']}-{int(scheduled.timestamp()) // 60}"
        assert meta["labels"] == {"app": cronjob["metadata"]["name"]}
        assert job["spec"] == cronjob["spec"]["jobTemplate"]["spec"]
        policy = cronjob["spec"]["concurrencyPolicy"]
        if policy == self._known_policies.get(_uid(cronjob)) == "Forbid":
            others = [one for one in self.scheduled_jobs(cronjob) if one["metadata"] != meta]
            assert all(is_finished(one) for one in others), f"{name} runs concurrently"

    def _check_status(self, prefix: str, change: str, new: Object, old: Object) -> None:
        assert prefix == BATCH_CRONJOBS.path(), f"{prefix} is written"
        assert change == "MODIFIED", f"a CronJob is {change}"
        assert new["spec"] == old["spec"], "the spec is written"
        for field in ("lastScheduleTime", "lastSuccessfulTime"):
            before, after = (one.get("status", {}).get(field, "") for one in (old, new))
            assert after >= before, f"{field} decreases from {before} to {after}"

    # At rest.

    def check_invariants(self) -> None:
        """Check that all is as it should be when the controller has nothing left to do.

        Raises:
            AssertionError: it is not.
        """
        for cronjob in self.cronjobs.values():
            self._known_policies[_uid(cronjob)] = cronjob["spec"]["concurrencyPolicy"]
            status = cronjob.get("status", {})
            unfinished = {
                job["metadata"]["uid"]
                for job in self.scheduled_jobs(cronjob)
                if not is_finished(job) and "deletionTimestamp" not in job["metadata"]
            }
            active = {reference["uid"] for reference in status.get("active", [])}
            assert active == unfinished, f"{active} are active, not {unfinished}"
            self._check_history(cronjob)
            self._check_latest(cronjob)

    def _check_history(self, cronjob: Object) -> None:
        finished = [
            job["status"]["conditions"][0]["type"] for job in self.jobs(cronjob) if is_finished(job)
        ]
        for condition, field in (("Complete", "successful"), ("Failed", "failed")):
            limit = cronjob["spec"].get(f"{field}JobsHistoryLimit")
            assert limit is None or finished.count(condition) <= limit, finished

    def _check_latest(self, cronjob: Object) -> None:
        """The latest time has been started, if nothing is in its way."""
        spec, meta = cronjob["spec"], cronjob["metadata"]
        blocked = spec["concurrencyPolicy"] == "Forbid" and cronjob.get("status", {}).get("active")
        late = spec.get("startingDeadlineSeconds") is not None
        if blocked or late or spec.get("suspend") or spec["schedule"].startswith("@every"):
            return
        since = max(times.parse(meta["creationTimestamp"]), self.changed_at[_uid(cronjob)])
        until = self.clock.now() - timedelta(seconds=1)
        missed = cron.parse(spec["schedule"]).missed(since, until)
        last = cronjob.get("status", {}).get("lastScheduleTime")
        if missed is not None and (last is None or times.parse(last) < missed.latest):
            raise AssertionError(f"{meta['name']}: {missed.latest} is not started, but {last}")


def _uid(cronjob: Object) -> str:
    uid: str = cronjob["metadata"]["uid"]
    return uid
