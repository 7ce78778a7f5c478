"""The job controller in a world of its own, for random histories: user, scheduler, kubelet, chance.

Objects are called ``namespace/name``, or by their name alone where they are in namespace d.

Time is virtual and everything runs in one loop, so that one history always goes the same way.
"""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from support_audit_jobs import JobAudit, owner_of, phase_of
from support_controllers import Notes
from support_local import LocalApi, LocalClient, key_of

from batholith.job_ctrl.controller import JobController
from batholith.job_ctrl.plugins.registry import Registry
from batholith.job_ctrl.settings import JobSettings
from batholith.machinery.testing import FakeClock
from batholith.model.names import (
    COMMANDS,
    CONFIGMAPS,
    JOBS,
    NETWORKPOLICIES,
    PERSISTENTVOLUMECLAIMS,
    PODGROUPS,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)

T = TypeVar("T")
Object = dict[str, Any]

PLUGINS = Registry.load()
SETTINGS = JobSettings(workers=2, claim_interval=20.0)
JOB = "j"
HOME = "d/j"
"""The job where there is only one."""
TICK, QUIET, LONG = 0.5, 4.0, 900.0
"""Seconds: a step of time, how long no request makes a rest, and how long one may take to come."""
PATIENCE = 1100.0
"""Seconds within which what was refused time and again is tried anew."""


MADE = (SERVICES, CONFIGMAPS, NETWORKPOLICIES, SECRETS)
"""What plugins bring."""


class _Here(ThreadPoolExecutor):
    """Does what is given to a thread at once, in the loop's own."""

    def submit(self, call: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*args, **kwargs))
        return done


class Life:
    """The server with at most one controller, and what others do to jobs."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_Here())
        self.clock = FakeClock()
        self.api = LocalApi(self.clock, self.loop)
        self.audit = JobAudit(self.api)
        self.api.told = self.audit.hear
        self.notes = Notes()
        self.controller: JobController | None = None
        self._client: LocalClient | None = None
        self._running: asyncio.Task[None] | None = None
        self.lives = 0
        """How many controllers there have been."""
        self._watches = 0
        """The most that a controller has kept open."""

    # The loop.

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* to its end, with everything else that has something to do."""
        return self.loop.run_until_complete(work)

    async def rounds(self, number: int) -> None:
        """Let everybody do a little."""
        for _ in range(number):
            await asyncio.sleep(0)

    async def idle(self) -> None:
        """Let everybody go on until only time can bring something new."""
        await asyncio.sleep(0)
        while self.loop._ready:  # type: ignore[attr-defined]  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0)

    async def pass_time(self, seconds: float) -> None:
        """Let *seconds* pass, with everybody awake."""
        await self.idle()
        until = self.clock.monotonic() + seconds
        while (left := until - self.clock.monotonic()) > 0:
            self.clock.tick(min(TICK, left))
            await self.idle()

    async def rest(self) -> None:
        """Let all go well from now on, and wait until the controller has nothing left to do.

        INV-PIPE-1: it comes to a rest.
        """
        self.api.release()
        if self.controller is None:
            await self.start()
        began = quiet = self.clock.monotonic()
        await self.idle()
        self._watches = max(self._watches, self.api.watches)
        while self.clock.waiting and self.clock.monotonic() - quiet < QUIET:
            asked = self.api.requests
            await self.pass_time(TICK)
            self._watches = max(self._watches, self.api.watches)
            if asked != self.api.requests or self.api.watches < self._watches:
                quiet = self.clock.monotonic()
            assert quiet - began < LONG, "INV-PIPE-1: it never comes to a rest"

    # The controller.

    async def start(self) -> None:
        """A new process of the controller, unless there is one."""
        if self.controller is not None:
            return
        self.lives += 1
        self.audit.taken_over()
        self._client = LocalClient(self.api, f"controller-{self.lives}")
        self.controller = JobController(
            self._client,
            settings=SETTINGS,
            clock=self.clock,
            recorder=self.notes,
            plugins=PLUGINS,
        )
        self._running = asyncio.create_task(self.controller.run())

    async def kill(self) -> None:
        """The process is gone between one moment and the next: nothing is tidied up."""
        if self._client is not None:
            self._client.dead = True
            await self.stop()

    async def stop(self) -> None:
        """The process is told to end, and does; INV-LC-1: after that it writes nothing."""
        if self._running is not None:
            self._running.cancel()
            await self._end()
        self.controller = self._running = self._client = None

    async def _end(self) -> None:
        assert self._running is not None and self._client is not None
        self.api.release()
        for _ in range(40):
            await self.idle()
            if self._running.done():
                break
            self.clock.tick(TICK)
        assert self._running.done(), "INV-LC-3: it does not end"
        self._client.dead = True
        if not self._running.cancelled():
            self._running.result()

    def close(self) -> None:
        """End it all."""
        self.do(self.kill())
        self.api.end_watches()
        self.do(self.idle())
        self.loop.close()

    # What there is.

    def every(self, resource: Resource) -> dict[str, Object]:
        """Objects by namespace and name, in their order."""
        return dict(sorted(self.api.objects(resource).items()))

    def named(self, resource: Resource) -> dict[str, Object]:
        """Objects of namespace d by name, in their order."""
        every = self.every(resource)
        return {key[2:]: obj for key, obj in every.items() if key.startswith("d/")}

    @property
    def job(self) -> Object | None:
        return self.every(JOBS).get(HOME)

    @property
    def status(self) -> Object:
        status: Object = (self.job or {}).get("status", {})
        return status

    @property
    def phase(self) -> str:
        return phase_of(self.job or {})

    def group(self, job: str = HOME) -> str | None:
        """The name of the job's PodGroup, if that is there."""
        there = self.every(JOBS).get(job)
        name = f"{job.partition('/')[2]}-{there['metadata']['uid']}" if there else ""
        space = job.partition("/")[0]
        return name if f"{space}/{name}" in self.every(PODGROUPS) else None

    def put(self, resource: Resource, name: str, **fields: Any) -> None:
        """Make or change an object."""
        namespace, _, name = key_of(name).partition("/")
        self.api.put(resource, name, namespace=namespace, **fields)

    # The user.

    def submit(self, spec: Object, job: str = HOME) -> None:
        self.put(JOBS, job, spec=spec)

    def edit(self, job: str = HOME, **changes: Any) -> None:
        """Change the job's spec."""
        self.put(JOBS, job, spec=changes)

    def command(self, action: str, job: str = HOME) -> None:
        namespace, _, name = job.partition("/")
        target = {"apiVersion": JOBS.api_version, "kind": "Job", "name": name}
        self.put(COMMANDS, f"{namespace}/c{self.api.version}", action=action, target=target)

    def delete_job(self, job: str = HOME, *, how: str = "Background") -> None:
        """Delete it with propagation *how*: the rest is up to the garbage collector."""
        if how == "Background":
            self.api.take_away(JOBS, job)
        else:
            meta = {"deletionTimestamp": self.api.now(), "finalizers": [how]}
            self.put(JOBS, job, metadata=meta)

    def evict(self, name: str, *, force: bool = False) -> None:
        """Somebody deletes a pod."""
        self.audit.evicted(name)
        (self.api.take_away if force else self.api.ask_to_go)(PODS, name)

    def bring_claims(self) -> None:
        """Make the claims that jobs name and that are not there."""
        for key, job in self.every(JOBS).items():
            for volume in job["spec"].get("volumes", ()):
                claim = f"{key.partition('/')[0]}/{volume.get('volumeClaimName', '')}"
                if not claim.endswith("/") and claim not in self.every(PERSISTENTVOLUMECLAIMS):
                    self.put(PERSISTENTVOLUMECLAIMS, claim)

    # The scheduler and the kubelet.

    def admit(self, phase: str = "Inqueue", job: str = HOME) -> None:
        if name := self.group(job):
            self.put(PODGROUPS, f"{job.partition('/')[0]}/{name}", status={"phase": phase})

    def bind(self, name: str) -> None:
        self.put(PODS, name, spec={"nodeName": "n"})

    def turn(self, name: str, phase: str, *, code: int = 0, restarts: int | None = None) -> None:
        """The kubelet reports about a pod."""
        one: Object = {"ready": phase == "Running", "state": {}}
        status = self.every(PODS)[key_of(name)].get("status", {})
        one["restartCount"] = status.get("containerStatuses", [{}])[0].get("restartCount", 0)
        if restarts is not None:
            one["restartCount"] = restarts
            one["lastState"] = {"terminated": {"exitCode": 1, "finishedAt": self.api.now()}}
        if phase in ("Succeeded", "Failed"):
            ended = {"exitCode": code, "finishedAt": self.api.now()}
            one["state"] = {"terminated": ended}
        if phase == "Failed":
            self.audit.failed(name)
        self.put(
            PODS, name, spec={"nodeName": "n"}, status={"phase": phase, "containerStatuses": [one]}
        )

    def reap(self, name: str) -> None:
        """The kubelet has ended a pod that was asked to go."""
        self.api.take_away(PODS, name)

    # The garbage collector.

    def sweep(self) -> bool:
        """Remove all but pods whose owner is gone; whether there was something."""
        uids = {job["metadata"]["uid"] for job in self.every(JOBS).values()}
        left = [
            (prefix, key)
            for prefix, objects in self.api.stores.items()
            for key, obj in sorted(objects.items())
            if prefix != PODS.path() and (owner := owner_of(obj)) and owner not in uids
        ]
        for prefix, key in left:
            self.api._drop(prefix, key)
        return bool(left)

    def collect(self) -> None:
        """Ask everything to go whose owner is gone or going; then let a waiting owner go.

        What belongs to an owner deleted with propagation Orphan belongs to nobody from now on.
        """
        jobs = {job["metadata"]["uid"]: job["metadata"] for job in self.every(JOBS).values()}
        waited_for = set()
        for prefix, objects in self.api.stores.items():
            for key, obj in sorted(objects.items()):
                owner = jobs.get(owner_of(obj), {"deletionTimestamp": "", "finalizers": []})
                if not owner_of(obj) or "deletionTimestamp" not in owner:
                    continue
                if "Orphan" in owner.get("finalizers", ()):
                    meta = {**obj["metadata"], "ownerReferences": []}
                    self.api._store(prefix, key, {**obj, "metadata": meta})
                    continue
                self.api._drop(prefix, key)
                if key in objects:
                    waited_for.add(owner_of(obj))
        for key, job in self.every(JOBS).items():
            going = "deletionTimestamp" in job["metadata"]
            if going and job["metadata"]["uid"] not in waited_for:
                self.api.take_away(JOBS, key)

    def strangers(self) -> list[tuple[Resource, str]]:
        """What belongs to nobody and may hold names that jobs need."""
        return [
            (kind, key)
            for kind in (PODS, PODGROUPS, *MADE)
            for key, obj in self.every(kind).items()
            if not owner_of(obj)
        ]
