"""Jobs and pods with a log of their changes, and recorders with a store that loses commits."""

import asyncio
import json
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import msgspec
import sqlalchemy as sa
from support.examples import examples

from batholith.api.history.metrics import RecorderMetrics
from batholith.api.history.recorder import recorded_resources
from batholith.api.history.stream import LATE_AFTER, RecordedStream
from batholith.kube.client.client import Client
from batholith.kube.client.codec import ListScope, ObjectList
from batholith.kube.errors import GoneError
from batholith.machinery.testing import FakeClock
from batholith.model import times
from batholith.model.names import GROUP_NAME, QUEUE_NAME
from batholith.store import history_tables
from batholith.store.commands import METADATA
from batholith.store.database import Database, StoreUnavailableError
from batholith.store.recording import FencedError, OutOfStepError, Recording

T = TypeVar("T")
JOBS, PODS = "jobs.batch.volcano.sh", "pods"
RESOURCES = (JOBS, PODS)
RECORDED = {each.name: each for each in recorded_resources() if each.name in RESOURCES}
REGISTERED = RecorderMetrics(None)

__all__ = ["HistoryWorld", "examples"]


def queue_of(job: str) -> str:
    return f"queue-{int(job.removeprefix('job-')) % 2}"


class FaultyDatabase:
    """A database in memory, whose next transactions fail, or succeed without a response."""

    def __init__(self) -> None:
        self._engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
        METADATA.create_all(self._engine)
        self.faults: list[str] = []

    async def run(self, work: Callable[[sa.Connection], T]) -> T:
        fault = self.faults.pop(0) if self.faults else ""
        with self._engine.connect() as db:
            try:
                result = work(db)
            except BaseException:
                db.rollback()
                raise
            if fault == "failed":
                db.rollback()
                raise StoreUnavailableError("failed")
            db.commit()
        if fault == "lost":
            raise StoreUnavailableError("committed, and the response is lost")
        if fault == "twice":  # the retry after a broken connection
            with self._engine.begin() as db:
                return work(db)
        return result

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        with self._engine.connect() as db:
            return work(db)

    def close(self) -> None:
        self._engine.dispose()


@dataclass(slots=True)
class Pod:
    """A pod as it really was."""

    job: str
    requests: dict[str, float]
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None


@dataclass(slots=True)
class Recorder:
    """A recorder with its streams."""

    recording: Recording
    streams: dict[str, RecordedStream]


@dataclass(slots=True)
class HistoryWorld:
    """The cluster, the store, and the recorders."""

    clock: FakeClock = field(default_factory=FakeClock)
    database: FaultyDatabase = field(default_factory=FaultyDatabase)
    version: int = 0
    compacted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RESOURCES, 0))
    compactions: int = 0
    log: dict[str, list[tuple[int, str, bytes]]] = field(default_factory=lambda: defaultdict(list))
    objects: dict[str, dict[str, dict[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    pods: dict[str, Pod] = field(default_factory=dict)
    phases: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    deletions: dict[str, float] = field(default_factory=dict)
    resumed_at: dict[str, float] = field(default_factory=dict)
    delayed_deletions: set[str] = field(default_factory=set)
    recorders: list[Recorder] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    # -- the cluster ---------------------------------------------------------------------------

    def now(self) -> str:
        return times.format(self.clock.now())

    def create_job(self) -> None:
        uid = f"job-{len(self.phases)}"
        meta = {"name": uid, "namespace": "default", "uid": uid, "creationTimestamp": self.now()}
        spec = {"queue": queue_of(uid), "tasks": []}
        self.phases[uid] = []
        self._put(JOBS, uid, {"metadata": meta, "spec": spec, "status": {}})
        self.set_phase(uid, "Pending")

    def set_phase(self, uid: str, phase: str) -> None:
        job = self.objects[JOBS][uid]
        state = {"phase": phase, "reason": f"r{self.version}", "lastTransitionTime": self.now()}
        others = [one for one in job["status"].get("conditions", ()) if one["status"] != phase]
        entry = {"status": phase, "lastTransitionTime": self.now()}
        status = {"state": state, "conditions": [*others, entry]}
        if self.phases[uid][-1:] != [phase]:
            self.phases[uid].append(phase)
        self._put(JOBS, uid, {**job, "status": status})

    def delete_job(self, uid: str) -> None:
        for pod in [name for name, one in self.pods.items() if one.job == uid]:
            if pod in self.objects[PODS]:
                self.delete_pod(pod)
        self._delete(JOBS, uid, self.objects[JOBS][uid])

    def create_pod(self, job: str, cpu: int) -> None:
        uid = f"pod-{len(self.pods)}"
        owner = {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "name": job,
            "uid": job,
            "controller": True,
        }
        annotations = {GROUP_NAME: job, QUEUE_NAME: queue_of(job)}
        meta = {
            "name": uid,
            "namespace": "default",
            "uid": uid,
            "annotations": annotations,
            "ownerReferences": [owner],
        }
        requests = {"cpu": f"{cpu * 500}m", "memory": cpu}
        spec = {"containers": [{"resources": {"requests": requests}}]}
        self.pods[uid] = Pod(job, {"cpu": cpu * 0.5, "memory": float(cpu)})
        self._put(PODS, uid, {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})

    def start_pod(self, uid: str) -> None:
        pod = self.objects[PODS][uid]
        if self.pods[uid].started is None and self.pods[uid].ended is None:
            self.pods[uid].started = self.clock.now().timestamp()
            self._put(PODS, uid, {**pod, "status": {"phase": "Running", "startTime": self.now()}})

    def finish_pod(self, uid: str) -> None:
        pod, truth = self.objects[PODS][uid], self.pods[uid]
        if truth.ended is None:
            truth.ended = self.clock.now().timestamp()
            truth.exit_code = int(uid.removeprefix("pod-")) % 3
            terminated = {"finishedAt": self.now(), "exitCode": truth.exit_code}
            ended = {"state": {"terminated": terminated}}
            phase = "Failed" if truth.exit_code else "Succeeded"
            status = {**pod["status"], "phase": phase, "containerStatuses": [ended]}
            self._put(PODS, uid, {**pod, "status": status})

    def touch_pod(self, uid: str) -> None:
        """Change something that is not recorded."""
        self._put(PODS, uid, self.objects[PODS][uid])

    def delete_pod(self, uid: str) -> None:
        """By force: a running pod has no later state."""
        pod, truth = self.objects[PODS][uid], self.pods[uid]
        if truth.started is not None and truth.ended is None:
            truth.ended = self.clock.now().timestamp()
        meta = {**pod["metadata"], "deletionTimestamp": self.now()}
        self._delete(PODS, uid, {**pod, "metadata": meta})

    def compact(self, resources: Sequence[str] = RESOURCES) -> None:
        """Forget all changes so far: a recorder that has not received them has to list."""
        self.compacted |= dict.fromkeys(resources, self.version)
        self.compactions += 1

    def _put(self, resource: str, uid: str, obj: dict[str, Any]) -> None:
        known = uid in self.objects[resource]
        self.objects[resource][uid] = self._append(resource, "MODIFIED" if known else "ADDED", obj)

    def _delete(self, resource: str, uid: str, obj: dict[str, Any]) -> None:
        del self.objects[resource][uid]
        self.deletions[uid] = self.clock.now().timestamp()
        self._append(resource, "DELETED", obj)

    def _append(self, resource: str, kind: str, obj: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        meta = {**obj["metadata"], "resourceVersion": str(self.version)}
        new = {**obj, "metadata": meta}
        line = json.dumps({"type": kind, "object": new}).encode()
        self.log[resource].append((self.version, kind, line))
        return new

    # -- recorders -----------------------------------------------------------------------------

    async def list_pages(
        self, scope: ListScope, *, size: int = 500
    ) -> AsyncIterator[ObjectList[msgspec.Raw]]:
        """The client's method: pages of two objects."""
        name = next(each.name for each in RECORDED.values() if each.resource == scope.resource)
        items = [msgspec.Raw(json.dumps(one).encode()) for one in self.objects[name].values()]
        version = str(self.version)
        for start in range(0, max(len(items), 1), 2):
            yield ObjectList(items[start : start + 2], version)

    def start_recorder(self) -> None:
        recording = Recording(cast(Database, self.database))
        self.database.faults, faults = [], self.database.faults
        self.run(recording.begin())
        self.database.faults = faults
        streams = {
            name: RecordedStream(
                cast(Client, self),
                recorded,
                recording,
                clock=self.clock,
                metrics=REGISTERED,
            )
            for name, recorded in RECORDED.items()
        }
        self.recorders.append(Recorder(recording, streams))

    def deliver(self, number: int, resource: str, count: int) -> None:
        """Let a recorder do its next step: resume, list, or write some changes."""
        if not self.recorders:
            return
        recorder = self.recorders[number % len(self.recorders)]
        try:
            self.run(self._deliver(recorder.streams[resource], resource, count))
        except FencedError:
            self.recorders.remove(recorder)
        except (StoreUnavailableError, OutOfStepError):
            recorder.streams[resource].position = None

    async def _deliver(self, stream: RecordedStream, resource: str, count: int) -> None:
        if stream.position is None:
            self.resumed_at[resource] = self.clock.now().timestamp()
            await stream.resume()
        assert stream.position is not None
        position = int(stream.position.version)
        if position < self.compacted[resource]:
            error = {"kind": "Status", "code": 410, "reason": "Expired"}
            try:
                await stream.write([json.dumps({"type": "ERROR", "object": error}).encode()])
            except GoneError:
                await stream.list()
            return
        lines = [line for version, _, line in self.log[resource] if version > position][:count]
        for line in lines:
            self._note_delay(resource, json.loads(line)["object"]["metadata"]["uid"])
        await stream.write(lines)

    def _note_delay(self, resource: str, uid: str) -> None:
        """A watch that is open does not show that its server, or the network, delays a deletion."""
        sent_at = max(self.deletions.get(uid, math.inf), self.resumed_at[resource])
        if self.clock.now().timestamp() - sent_at > LATE_AFTER:
            self.delayed_deletions.add(uid)

    def settle(self) -> None:
        """Let a new recorder record all that there is."""
        self.database.faults = []
        self.start_recorder()
        for _ in range(2):
            for resource in RESOURCES:
                self.deliver(len(self.recorders) - 1, resource, 100_000)
        self.run(self.recorders[-1].recording.add_unknown_jobs(before=2**62, limit=100_000))

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def close(self) -> None:
        self.database.close()
        self.loop.close()

    # -- the truth -----------------------------------------------------------------------------

    def resource_seconds(self, job: str) -> dict[str, float]:
        total: dict[str, float] = defaultdict(float)
        for pod in self.pods.values():
            if pod.job == job and pod.started is not None:
                end = self.clock.now().timestamp() if pod.ended is None else pod.ended
                for resource, amount in pod.requests.items():
                    total[resource] += amount * (end - pod.started)
        return {name: amount for name, amount in total.items() if amount}

    def exit_codes(self, job: str) -> dict[str, int]:
        """How many of a job's pods that had started have ended with which exit code."""
        pods = [pod for pod in self.pods.values() if pod.job == job and pod.started is not None]
        codes = [str(pod.exit_code) for pod in pods if pod.exit_code is not None]
        return {code: codes.count(code) for code in codes}

    def queue_seconds(self, queue: str, start: float, end: float) -> dict[str, float]:
        """What the pods of a queue's jobs used during an interval."""
        total: dict[str, float] = defaultdict(float)
        for pod in self.pods.values():
            if queue_of(pod.job) == queue and pod.started is not None:
                ended = self.clock.now().timestamp() if pod.ended is None else pod.ended
                seconds = max(0, min(ended, end) - max(pod.started, start))
                for resource, amount in pod.requests.items():
                    total[resource] += amount * seconds
        return {name: amount for name, amount in total.items() if amount}

    def counted(self) -> tuple[dict[str, float], dict[int, dict[str, float]]]:
        """Usage of all jobs, and the same added up by hour and by day."""
        usage, by_job = history_tables.USAGE, history_tables.JOB_USAGE

        def work(db: sa.Connection) -> tuple[dict[str, float], dict[int, dict[str, float]]]:
            steps: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
            for row in db.execute(sa.select(usage)):
                steps[row.step][row.resource] += row.amount
            jobs: dict[str, float] = defaultdict(float)
            for row in db.execute(sa.select(by_job)):
                jobs[row.resource] += row.amount
            return jobs, steps

        found: tuple[dict[str, float], dict[int, dict[str, float]]] = self.run(
            self.database.read(work)
        )
        return found
