"""A kubelet for tests of Jobs: each pod ends according to its namespace's script."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from batholith.kube.client.client import Client, PatchType
from batholith.kube.errors import ConflictError, InvalidError, NotFoundError
from batholith.kube.informer.informer import Informer
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import PODS

log = logging.getLogger(__name__)

Json = dict[str, Any]

INDEX = "batch.kubernetes.io/job-completion-index"
STEP = 0.2
"""Seconds from one state of a pod to the next."""

HANG = "hang"
"""As a script's *on_delete*: the pod terminates when it is released."""

RUN = "run"
"""As an outcome: the pod runs until it is finished or deleted."""


class RawPod(ApiStruct, frozen=True):
    """A pod as the API server shows it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Json = {}
    status: Json = {}

    @property
    def phase(self) -> str:
        return str(self.status.get("phase", ""))

    @property
    def index(self) -> str:
        return self.metadata.labels.get(INDEX, "")


@dataclass(slots=True, kw_only=True)
class Script:
    """How the pods of a namespace end.

    An outcome is ``ok``, ``exit N`` (of the first container), ``evicted``, ``restarts N`` (the pod
    runs, and its containers have restarted so often), ``run``.
    """

    outcomes: Sequence[str] | Mapping[str, Sequence[str]] = ("ok",)
    """Outcomes of the first, second, … pod, the last one for all later ones; or such a list for
    each completion index, ``ok`` for others."""

    on_delete: str = "exit 143"
    """Outcome of a pod that is deleted while it runs, or ``hang``."""

    finish: dict[str, str] = field(default_factory=dict)
    """Outcome of pods that run, by index (empty without)."""

    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether pods that hang may terminate."""

    _created: Counter[str] = field(default_factory=Counter)

    def next_outcome(self, index: str) -> str:
        """Return the outcome of a new pod."""
        given = self.outcomes
        found = given.get(index, ("ok",)) if isinstance(given, Mapping) else given
        outcome = found[min(self._created[index], len(found) - 1)]
        self._created[index] += 1
        return outcome


class ScriptedKubelet:
    """Writes the status of the pods of all namespaces with a script."""

    def __init__(self, client: Client, scripts: Mapping[str, Script]) -> None:
        self._pods = Informer(client, PODS, RawPod)
        self._client = client
        self._scripts = scripts
        self._changed: dict[str, asyncio.Event] = {}
        self._latest: dict[str, RawPod] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """At work for the length of the block; fails if a pod's task failed."""
        self._pods.add_event_handler(self._on_pod)
        task = asyncio.create_task(self._pods.run())
        try:
            await self._pods.wait_synced()
            yield
        finally:
            for each in (task, *self._tasks):
                each.cancel()
            await asyncio.gather(task, *self._tasks, return_exceptions=True)

    def latest(self) -> list[RawPod]:
        """Return the pods as last observed."""
        return list(self._latest.values())

    def _on_pod(self, old: RawPod | None, new: RawPod | None) -> None:
        pod = new or old
        if pod is None or pod.metadata.namespace not in self._scripts:
            return
        uid = pod.metadata.uid
        if new is None:
            self._latest.pop(uid, None)
        else:
            self._latest[uid] = new
        if uid not in self._changed:
            self._changed[uid] = asyncio.Event()
            task = asyncio.create_task(self._live(pod, self._scripts[pod.metadata.namespace]))
            self._tasks.add(task)
        self._changed[uid].set()

    async def _live(self, pod: RawPod, script: Script) -> None:
        """Let one pod run and end."""
        uid = pod.metadata.uid
        outcome = script.next_outcome(pod.index)
        await asyncio.sleep(STEP * random.random())
        if not self._is_terminating(uid):
            restarts = int(outcome.split()[1]) if outcome.startswith("restarts") else 0
            await self._write(pod, _running(pod, restarts))
            await asyncio.sleep(STEP)
        while (latest := self._latest.get(uid)) is not None:
            self._changed[uid].clear()
            terminating = latest.metadata.deletion_timestamp is not None
            ended = latest.phase in ("Succeeded", "Failed")
            if terminating and not ended and script.on_delete == HANG:
                await script.released.wait()
                await self._write(pod, _ended(pod, "exit 143"))
            elif terminating and not ended:
                await asyncio.sleep(STEP)
                await self._write(pod, _ended(pod, script.on_delete))
            elif terminating:
                await self._delete(pod)
            elif not ended and (outcome != RUN and not outcome.startswith("restarts")):
                await self._write(pod, _ended(pod, outcome))
            elif not ended and pod.index in script.finish:
                outcome = script.finish[pod.index]
                continue
            await self._wait(uid)

    async def _wait(self, uid: str) -> None:
        """Wait for a change of the pod, or of its script."""
        try:
            async with asyncio.timeout(STEP):
                await self._changed[uid].wait()
        except TimeoutError:
            pass

    def _is_terminating(self, uid: str) -> bool:
        latest = self._latest.get(uid)
        return latest is None or latest.metadata.deletion_timestamp is not None

    async def _write(self, pod: RawPod, status: Json) -> None:
        meta = pod.metadata
        body = {"metadata": {"uid": meta.uid}, "status": status}
        try:
            await self._client.patch(
                PODS,
                meta.name,
                body,
                namespace=meta.namespace,
                subresource="status",
                kind=PatchType.MERGE,
            )
        except (NotFoundError, InvalidError, ConflictError):
            log.info("pod not found", extra={"key": meta.key})

    async def _delete(self, pod: RawPod) -> None:
        meta = pod.metadata
        try:
            await self._client.delete(
                PODS, meta.name, namespace=meta.namespace, uid=meta.uid, grace_period=0
            )
        except (NotFoundError, ConflictError):
            log.info("pod not found", extra={"key": meta.key})


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(kind: str, status: str, **more: str) -> Json:
    return {"type": kind, "status": status, "lastTransitionTime": _now(), **more}


def _running(pod: RawPod, restarts: int) -> Json:
    statuses = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": True,
            "restartCount": restarts,
            "state": {"running": {"startedAt": _now()}},
        }
        for container in pod.spec["containers"]
    ]
    conditions = [_condition(kind, "True") for kind in ("Ready", "ContainersReady", "PodScheduled")]
    return {
        "phase": "Running",
        "startTime": _now(),
        "conditions": conditions,
        "containerStatuses": statuses,
    }


def _ended(pod: RawPod, outcome: str) -> Json:
    """Return the status after *outcome*."""
    code = int(outcome.split()[1]) if outcome.startswith("exit") else 137 * (outcome == "evicted")
    statuses = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {
                "terminated": {
                    "exitCode": 0 if number else code,
                    "reason": "Error" if code and not number else "Completed",
                    "startedAt": _now(),
                    "finishedAt": _now(),
                }
            },
        }
        for number, container in enumerate(pod.spec["containers"])
    ]
    conditions = [
        _condition(kind, "False", reason="PodFailed" if code else "PodCompleted")
        for kind in ("Ready", "ContainersReady")
    ]
    if outcome == "evicted":
        conditions.append(_condition("DisruptionTarget", "True", reason="EvictionByEvictionAPI"))
    return {
        "phase": "Failed" if code else "Succeeded",
        "conditions": conditions,
        "containerStatuses": statuses,
    }
