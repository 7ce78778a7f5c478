"""Writes what is decided into PodGroups, pods and queues, and no more than is needed.

Of each object only the latest word is kept. A new phase or a new kind of condition goes out at
once; what only refreshes numbers or a text waits until the last write is a moment old, so that a
thousand pods starting one after the other are not a thousand writes of their group. What says
nothing new is not written at all. Every write names the version of the object that it is based on:
what comes late, from a leader that leads no more, does not take effect.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from ...kube.client.client import Client, PatchType
from ...kube.client.events import EventType
from ...kube.errors import ApiError, ConflictError, NotFoundError, ServerError, TooManyRequestsError
from ...machinery.change_rate import ChangeRate
from ...machinery.clock import Clock
from ...machinery.controller import RequeueError, ShardedQueue, WorkerSettings, run_workers
from ...machinery.event_recorder import Recorder
from ...machinery.rate_limiters import ExponentialFailureRateLimiter
from ...model import names
from ...model.base import Part
from ...model.log_fields import belonging
from ...model.meta import ObjectMeta, ObjectReference
from ...model.podgroup import PodGroup, PodGroupPhase, PodGroupStatus
from ...model.queue import Queue
from ..state.resources import Amounts, amounts, quantities
from .pod_versions import Standing
from .podgroup_status import SCHEDULED, UNSCHEDULABLE, Note, Report, same, says, stamped

log = logging.getLogger(__name__)

_GROUP, _POD, _QUEUE = "group:", "pod:", "queue:"


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds between two writes that only refresh one object."""

    group: float = 1.0
    busy_group: float = 30.0
    """The same at most while much is going on."""
    pod: float = 10.0
    queue: float = 1.0


@dataclass(slots=True)
class _Group:
    """The latest word on a PodGroup, and what stands there."""

    report: Report
    standing: PodGroupStatus
    version: str
    uid: str
    written_at: float = float("-inf")
    wrong_since: float | None = None
    """Since when something else stands there, if that may wait."""


@dataclass(slots=True)
class _Pod:
    note: Note
    told: tuple[str, str] | None
    written_at: float = float("-inf")


@dataclass(slots=True)
class _Queue:
    allocated: Amounts
    standing: Mapping[str, str | int | float]
    version: str
    uid: str
    written_at: float = float("-inf")


class _Written(Part, frozen=True):
    """An object after our write, as far as the next one asks."""

    metadata: ObjectMeta = ObjectMeta()


class Scribe:
    """The one writer of PodGroup status, PodScheduled conditions and what queues have allocated."""

    def __init__(
        self,
        client: Client,
        *,
        recorder: Recorder | None,
        clock: Clock,
        standing: Standing | None = None,
        at_once: int = 16,
        pauses: Pauses | None = None,
        bustle: ChangeRate | None = None,
    ) -> None:
        """Keep *at_once* writes under way at most.

        *standing* knows the versions of pods, and *bustle* how much is going on.
        """
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._standing = standing or Standing()
        self._pauses = pauses or Pauses()
        self._bustle = bustle or ChangeRate(clock)
        self._groups: dict[str, _Group] = {}
        self._pods: dict[str, _Pod] = {}
        self._queues: dict[str, _Queue] = {}
        self._cycles = 0
        # One shard for all workers: a slow write must not delay the status of another object.
        self._workers = WorkerSettings(workers_per_shard=at_once)
        self.queue = ShardedQueue(
            name="statuses",
            limiter=ExponentialFailureRateLimiter(0.05, 30.0),
            clock=clock,
            log_fields=self._named,
        )

    async def run(self) -> None:
        """Write until cancelled; what is due then is written first."""
        await run_workers(self.queue, self._write, settings=self._workers)

    # -- what ought to stand -------------------------------------------------------------------

    def tell(self, report: Report, told: Mapping[str, tuple[str, str] | None]) -> None:
        """Have *report* written; *told* says by uid what its pods have been told already."""
        self._cycles += 1
        if report.group is None:
            self._groups.pop(report.key, None)
        else:
            self._tell_group(report, report.group)
        for note in report.notes:
            held = self._pods.get(note.uid)
            if held is None:
                held = self._pods[note.uid] = _Pod(note, told.get(note.uid))
            held.note = note
            if held.told != (note.reason, note.message):
                fresh = held.told is None or held.told[0] != note.reason
                self._due(_POD + note.uid, held.written_at, 0 if fresh else self._pauses.pod)

    def allocated(self, queue: Queue, amounts_now: Amounts) -> None:
        """Have *amounts_now* written as what *queue* has allocated."""
        name = queue.metadata.name
        held = self._queues.get(name)
        if held is None:
            meta = queue.metadata
            held = self._queues[name] = _Queue(
                amounts_now, queue.status.allocated, meta.resource_version, meta.uid
            )
        held.allocated = amounts_now
        self._queue_due(name, held)

    def seen_queue(self, queue: Queue) -> None:
        """The queue has changed, perhaps by somebody else who wrote what it has allocated."""
        meta = queue.metadata
        held = self._queues.get(meta.name)
        if held is None:
            return
        if meta.uid != held.uid or _later(meta.resource_version, held.version):
            held.version, held.uid = meta.resource_version, meta.uid
            held.standing = queue.status.allocated
            self._queue_due(meta.name, held)

    def _queue_due(self, name: str, held: _Queue) -> None:
        if _wanted(held) != held.standing:
            self._due(_QUEUE + name, held.written_at, self._pauses.queue)

    def forget_pod(self, uid: str) -> None:
        """The pod is placed or gone: nothing is to be said of it any more."""
        self._pods.pop(uid, None)

    def forget_queue(self, name: str) -> None:
        """The queue is gone."""
        self._queues.pop(name, None)

    def _tell_group(self, report: Report, group: PodGroup) -> None:
        held = self._groups.get(report.key)
        if held is None or held.uid != group.metadata.uid:
            held = self._groups[report.key] = _Group(
                report, group.status, group.metadata.resource_version, group.metadata.uid
            )
        version = group.metadata.resource_version
        if held.report.group is not group and _later(version, held.version):
            held.version, held.standing = version, group.status  # perhaps another's word
        held.report = report
        if not same(report.status, held.standing):
            self.queue.add_after(_GROUP + report.key, self._patience(held))

    def _patience(self, held: _Group) -> float:
        """Seconds that the latest word on a group may still wait."""
        if _is_news(held.report.status, held.standing):
            return 0.0
        if held.wrong_since is None:
            held.wrong_since = self._clock.monotonic()
        since, pauses = max(held.wrong_since, held.written_at), self._pauses
        return self._bustle.remaining_delay(
            since, min_delay=pauses.group, max_delay=pauses.busy_group
        )

    def _due(self, key: str, written_at: float, pause: float) -> None:
        left = written_at + pause - self._clock.monotonic()
        self.queue.add_after(key, max(left, 0.0))

    # -- writing -------------------------------------------------------------------------------

    async def _write(self, key: str) -> float | None:
        kind, _, rest = key.partition(":")
        try:
            if kind + ":" == _GROUP:
                return await self._write_group(rest)
            if kind + ":" == _POD:
                await self._write_pod(rest)
            else:
                await self._write_queue(rest)
        except ConflictError as fault:
            # Queues have another writer, too: nobody's fault.
            raise RequeueError("the object has changed meanwhile") from fault
        except (ServerError, TooManyRequestsError):
            raise  # tried again, with what ought to stand then
        except ApiError as fault:
            # The object is gone or takes no such word: the next event about it decides.
            level = logging.DEBUG if isinstance(fault, NotFoundError) else logging.INFO
            log.log(level, "status not written", extra={**self._named(key), "why": str(fault)})
        return None

    def _named(self, key: str) -> dict[str, str]:
        """How the log names what *key* is about."""
        kind, _, rest = key.partition(":")
        group = self._groups.get(rest)
        if kind + ":" == _GROUP and group is not None and group.report.group is not None:
            return belonging("podgroup", group.report.group.metadata)
        pod = self._pods.get(rest)
        if kind + ":" == _POD and pod is not None:
            return {"pod": f"{pod.note.namespace}/{pod.note.name}"}
        return {kind: rest}

    async def _write_group(self, key: str) -> float | None:
        """Write a group's status, unless it may still wait: seconds until then."""
        held = self._groups.get(key)
        if held is None or same(held.report.status, held.standing):
            return None
        left = self._patience(held)
        if left > 0:
            return left
        wanted, before = held.report.status, held.standing
        conditions = stamped(
            wanted, before, now=self._clock.now(), transition=f"{held.uid[:8]}-{self._cycles}"
        )
        status: dict[str, object] = {
            "phase": wanted.phase,
            "running": wanted.running or None,
            "succeeded": wanted.succeeded or None,
            "failed": wanted.failed or None,
        }
        if conditions:
            status["conditions"] = conditions
        body = {"metadata": _only(held.uid, held.version), "status": status}
        namespace, _, name = key.rpartition("/")
        new = await self._client.patch(
            names.PODGROUPS, name, body, namespace=namespace, view=PodGroup
        )
        if _later(new.metadata.resource_version, held.version):
            held.version = new.metadata.resource_version
            held.standing = PodGroupStatus(
                phase=wanted.phase,
                conditions=conditions,
                running=wanted.running,
                succeeded=wanted.succeeded,
                failed=wanted.failed,
            )
        if wanted.phase != before.phase:
            note = {"phase": wanted.phase, "was": before.phase}
            log.info("gang phase", extra={**belonging("podgroup", new.metadata), **note})
        held.written_at, held.wrong_since = self._clock.monotonic(), None
        self._announce(held, before)
        return None

    def _announce(self, held: _Group, before: PodGroupStatus) -> None:
        """Events for what is new: that the group can start, or why it cannot."""
        group = held.report.group
        if group is None:
            return
        about = ObjectReference(
            api_version=names.PODGROUPS.api_version,
            kind=names.PODGROUPS.kind,
            namespace=group.metadata.namespace,
            name=group.metadata.name,
            uid=group.metadata.uid,
        )
        had = {says(each) for each in before.conditions}
        for condition in held.standing.conditions:
            if condition.type == UNSCHEDULABLE and says(condition) not in had:
                self._say(about, "Warning", UNSCHEDULABLE, condition.message)
        started = (PodGroupPhase.RUNNING, PodGroupPhase.COMPLETED)
        if held.standing.phase in started and before.phase not in started:
            self._say(about, "Normal", SCHEDULED, "pod group is ready")

    async def _write_pod(self, uid: str) -> None:
        held = self._pods.get(uid)
        if held is None or held.told == (held.note.reason, held.note.message):
            return
        note = held.note
        key = f"{note.namespace}/{note.name}"
        seen, version = self._standing.seen(key), self._standing.version(key, uid)
        if seen is None or not version or seen.spec.node_name:
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": note.reason,
            "message": note.message,
            "lastTransitionTime": self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        with self._standing.writing(uid):
            new = await self._client.patch(
                names.PODS,
                note.name,
                {"metadata": _only(uid, version), "status": {"conditions": [condition]}},
                namespace=note.namespace,
                subresource="status",
                kind=PatchType.STRATEGIC,
                view=_Written,
            )
            self._standing.written(uid, new.metadata.resource_version)
        held.told = (note.reason, note.message)
        held.written_at = self._clock.monotonic()
        about = ObjectReference(
            api_version="v1", kind="Pod", namespace=note.namespace, name=note.name, uid=uid
        )
        self._say(about, "Warning", "FailedScheduling", note.message)

    async def _write_queue(self, name: str) -> None:
        held = self._queues.get(name)
        if held is None or _wanted(held) == held.standing:
            return
        wanted = _wanted(held)
        allocated = dict.fromkeys(held.standing, None) | wanted
        body = {"metadata": _only(held.uid, held.version), "status": {"allocated": allocated}}
        new = await self._client.patch(
            names.QUEUES, name, body, subresource="status", view=_Written
        )
        held.written_at = self._clock.monotonic()
        if _later(new.metadata.resource_version, held.version):
            held.version, held.standing = new.metadata.resource_version, wanted
        # Else another wrote after us, and the watch was faster than our answer.

    def _say(self, about: ObjectReference, kind: EventType, reason: str, message: str) -> None:
        if self._recorder is not None:
            self._recorder.record(about, type=kind, reason=reason, message=message)


def _wanted(held: _Queue) -> dict[str, str | int | float]:
    """What ought to stand; the same amounts in other words are left as they are."""
    if held.standing and amounts(held.standing) == {"cpu": 0, "memory": 0} | held.allocated:
        return dict(held.standing)
    return dict(quantities({"cpu": 0, "memory": 0} | held.allocated))


def _is_news(wanted: PodGroupStatus, standing: PodGroupStatus) -> bool:
    """Whether *wanted* says more than other numbers.

    That all have their places is none: the phase, once they are bound, will say it.
    """
    kinds = {(each.type, each.reason) for each in wanted.conditions if each.type != SCHEDULED}
    had = {(each.type, each.reason) for each in standing.conditions}
    return wanted.phase != standing.phase or not kinds <= had


def _later(version: str, other: str) -> bool:
    """Whether *version* of an object came after the *other*."""
    return int(version or 0) > int(other or 0)


def _only(uid: str, version: str) -> dict[str, str]:
    """Metadata that makes a patch apply to this object in this version and no other."""
    return {"uid": uid, "resourceVersion": version}
