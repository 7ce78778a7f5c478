"""A job controller in a world of its own, for random histories: user, scheduler, kubelet, chance.

Time is virtual and everything runs in one loop, so that one history always goes the same way.
"""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from support_audit_jobs import JobAudit, owner_of
from support_controllers import Notes
from support_local import LocalApi, LocalClient

from batholith.job_ctrl.controller import JobController
from batholith.job_ctrl.plugins.registry import Registry
from batholith.job_ctrl.settings import JobSettings
from batholith.machinery.testing import FakeClock
from batholith.model.names import COMMANDS, JOBS, PODGROUPS, PODS, Resource

T = TypeVar("T")
Object = dict[str, Any]

PLUGINS = Registry.load()
SETTINGS = JobSettings(workers=2)
JOB = "j"
TICK, QUIET, LONG = 0.5, 4.0, 900.0
"""Seconds: a step of time, how long no request makes a rest, and how long one may take to come."""


class _Here(ThreadPoolExecutor):
    """Does what is given to a thread at once, in the loop's own."""

    def submit(self, call: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*args, **kwargs))
        return done


class Life:
    """The server with at most one controller, and what others do to a job named ``j``."""

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
        self._lives = 0
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
        self._lives += 1
        self.audit.taken_over()
        self._client = LocalClient(self.api, f"controller-{self._lives}")
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

    def named(self, resource: Resource) -> dict[str, Object]:
        """Objects of namespace d by name, in their order."""
        return {
            key.partition("/")[2]: obj for key, obj in sorted(self.api.objects(resource).items())
        }

    @property
    def job(self) -> Object | None:
        return self.named(JOBS).get(JOB)

    @property
    def status(self) -> Object:
        status: Object = (self.job or {}).get("status", {})
        return status

    @property
    def phase(self) -> str:
        phase: str = self.status.get("state", {}).get("phase", "")
        return phase

    def group(self) -> str | None:
        """The name of the job's PodGroup, if that is there."""
        name = f"{JOB}-{self.job['metadata']['uid']}" if self.job else ""
        return name if name in self.named(PODGROUPS) else None

    # The user.

    def submit(self, spec: Object) -> None:
        self.api.put(JOBS, JOB, spec=spec)

    def edit(self, **changes: Any) -> None:
        """Change the job's spec."""
        self.api.put(JOBS, JOB, spec=changes)

    def command(self, action: str) -> None:
        target = {"apiVersion": JOBS.api_version, "kind": "Job", "name": JOB}
        self.api.put(COMMANDS, f"c{self.api.version}", action=action, target=target)

    def delete_job(self, *, foreground: bool = False) -> None:
        if foreground:
            meta = {"deletionTimestamp": self.api.now()}
            self.api.put(JOBS, JOB, metadata=meta)
        else:
            self.api.take_away(JOBS, JOB)

    def evict(self, name: str, *, force: bool = False) -> None:
        """Somebody deletes a pod."""
        self.audit.evicted(name)
        (self.api.take_away if force else self.api.ask_to_go)(PODS, name)

    # The scheduler and the kubelet.

    def admit(self, phase: str = "Inqueue") -> None:
        if name := self.group():
            self.api.put(PODGROUPS, name, status={"phase": phase})

    def bind(self, name: str) -> None:
        self.api.put(PODS, name, spec={"nodeName": "n"})

    def turn(self, name: str, phase: str, *, code: int = 0, restarts: int | None = None) -> None:
        """The kubelet reports about a pod."""
        one: Object = {"ready": phase == "Running", "state": {}}
        before = self.named(PODS)[name].get("status", {}).get("containerStatuses", [{}])
        one["restartCount"] = before[0].get("restartCount", 0)
        if restarts is not None:
            one["restartCount"] = restarts
            one["lastState"] = {"terminated": {"exitCode": 1, "finishedAt": self.api.now()}}
        if phase in ("Succeeded", "Failed"):
            ended = {"exitCode": code, "finishedAt": self.api.now()}
            one["state"] = {"terminated": ended}
        if phase == "Failed":
            self.audit.failed(name)
        self.api.put(
            PODS, name, spec={"nodeName": "n"}, status={"phase": phase, "containerStatuses": [one]}
        )

    def reap(self, name: str) -> None:
        """The kubelet has ended a pod that was asked to go."""
        self.api.take_away(PODS, name)

    # The garbage collector.

    def sweep(self) -> bool:
        """Remove all but pods whose owner is gone; whether there was something."""
        uids = {job["metadata"]["uid"] for job in self.named(JOBS).values()}
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
        """Ask everything to go whose owner is gone or going; then let a waiting owner go."""
        jobs = {
            job["metadata"]["uid"]: "deletionTimestamp" in job["metadata"]
            for job in self.named(JOBS).values()
        }
        waited_for = set()
        for prefix, objects in self.api.stores.items():
            for key, obj in sorted(objects.items()):
                owners = [one["uid"] for one in obj["metadata"].get("ownerReferences", ())]
                if owners and all(jobs.get(uid, True) for uid in owners):
                    self.api._drop(prefix, key)
                    if key in objects:
                        waited_for.update(owners)
        for uid, going in jobs.items():
            if going and uid not in waited_for:
                self.api.take_away(JOBS, JOB)
