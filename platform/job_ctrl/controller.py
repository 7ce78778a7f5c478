"""The job controller's shell: watches, keeps the books, asks for decisions, has them carried out.

Handlers do no more than to keep each job's ledger and to mark its key; one worker at a time then
looks at the job, decides and acts until nothing is left to do. What it decides is in ``decide``,
what it writes in ``executor``. Nothing that is only in memory is needed to go on after a crash.
"""

import asyncio
import logging

from ..kube.client.client import Client
from ..kube.errors import NotFoundError
from ..kube.informer.informer import Informer, KindSource
from ..kube.informer.reflector import InformerOptions
from ..machinery.change_rate import ChangeRate
from ..machinery.clock import Clock, SystemClock
from ..machinery.controller import RequeueError, ShardedQueue, WorkerSettings, run_workers
from ..machinery.event_recorder import Recorder
from ..machinery.expectations import Expectations
from ..machinery.lifecycle import Source, run_controller
from ..machinery.rate_limiters import default_controller_rate_limiter
from ..model import names, times
from ..model.command import Command, target_kind_error, target_name_error
from ..model.job import Job, JobEvent
from ..model.meta import ObjectMeta
from ..model.podgroup import PodGroup, PodGroupPhase
from . import pod_tracker, podgroups
from .core_types import Owned, Pod, PriorityClass
from .decide import decide
from .defaults import FilledJob
from .effects import SetStatus
from .executor import Executor, Tools, Turn
from .job_info import UNSEEN_FOR, Case, Plan, newer
from .job_view import Order, View
from .metrics import JobMetrics
from .plugins.registry import Registry
from .recovery import catch_up, obstacles_of
from .settings import JobSettings

log = logging.getLogger(__name__)

_BUSY_PAUSE = 0.05
"""Seconds for which changes of a job's pods are collected while much is going on: a job that
thousands of pods start for is not looked at for each of them."""
WATCHED = (names.SERVICES, names.NETWORKPOLICIES, names.CONFIGMAPS)
"""Kinds of plugins' objects that come back at once when somebody deletes them; to watch Secrets
would be the right to read everybody's, so they come back when a pod has to be made again."""

_STEPS = 32
"""Decisions about one job in a row before others get their turn."""


_LONGEST_WAIT = 60.0
"""Seconds that a job waits at most before what was refused is tried again: nobody tells us of a
quota that is freed, or of a name that is given up."""

_UNSEEN_LOOK = 3.0
"""Seconds until a job is looked at again of which the caches do not show all that we wrote. Mostly
they do by then; what went while a watch was broken they never will."""


class JobController:
    """Runs Volcano's Jobs; see :meth:`run_in_thread`."""

    def __init__(
        self,
        client: Client,
        *,
        settings: JobSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
        plugins: Registry | None = None,
        podgroups: Informer[PodGroup] | None = None,
    ) -> None:
        """*podgroups* holds PodGroups, at least those of the jobs' namespace.

        Several controllers may share it, each running it.
        """
        self._client = client
        self._settings = settings = settings or JobSettings()
        self._clock = clock if clock is not None else SystemClock()
        self._queue = ShardedQueue(
            name="job",
            shards=settings.workers,
            limiter=default_controller_rate_limiter(self._clock, max_delay=_LONGEST_WAIT),
            clock=self._clock,
            metrics=settings.work_metrics,
        )
        self._expected = Expectations(self._clock, ttl=UNSEEN_FOR)
        self._metrics = JobMetrics(settings.registry)
        self._bustle = ChangeRate(self._clock)
        self._executor = Executor(
            Tools(
                client=client,
                clock=self._clock,
                queue=self._queue,
                expected=self._expected,
                recorder=recorder,
                metrics=self._metrics,
                settings=settings,
                bustle=self._bustle,
            )
        )
        self._plugins = plugins or Registry.load()
        self._cases: dict[str, Case] = {}
        # Commands of the first list, which comes in no useful order.
        self._early: list[Command] | None = []
        self._priorities_seen = 0
        self._watch(podgroups)

    def _watch(self, groups: Informer[PodGroup] | None) -> None:
        client, space = self._client, self._settings.namespace
        self._jobs = Informer(client, names.JOBS, FilledJob, namespace=space)
        self._pods = Informer(
            client, names.PODS, Pod, namespace=space, label_selector=names.JOB_NAME
        )
        if groups is None:
            groups = Informer(client, names.PODGROUPS, PodGroup, namespace=space)
        self._podgroups = groups
        obeyed = InformerOptions(ordered=True)
        self._commands = Informer(client, names.COMMANDS, Command, namespace=space, options=obeyed)
        self._priorities = Informer(client, names.PRIORITYCLASSES, PriorityClass)
        made = [
            Informer(client, kind, Owned, namespace=space, label_selector=names.JOB_NAME)
            for kind in WATCHED
        ]
        self._sources: list[Source] = [
            KindSource(self._jobs, self._on_job),
            KindSource(self._pods, self._on_pod),
            KindSource(self._podgroups, self._on_podgroup),
            KindSource(self._commands, self._on_command),
            KindSource(self._priorities, self._on_priority),
            *(KindSource(cache, self._on_object) for cache in made),
        ]

    async def run(
        self, *, ready: asyncio.Event | None = None, lead: asyncio.Event | None = None
    ) -> None:
        """Watch, then work (not before *lead*), until cancelled; *ready* is set in between.

        When cancelled, it finishes what is in hand and queued, and writes nothing after.
        """
        await run_controller(
            self._sources, self._serve, on_synced=self._begin, ready=ready, elected=lead
        )

    async def _serve(self) -> None:
        settings = WorkerSettings(timeout=self._settings.reconcile_timeout)
        await run_workers(self._queue, self._reconcile, settings=settings)

    def _begin(self) -> None:
        early, self._early = self._early or [], None
        for command in sorted(early, key=lambda command: command.sort_key):
            self._on_command(None, command)

    # What is seen.

    def _on_job(self, old: Job | None, new: Job | None) -> None:
        about = new or old
        if about is None:
            return
        self._bustle.observe()
        key = about.metadata.key
        if new is None:
            self._metrics.gone(about)
            self._tidy(key)
            self._queue.add(key)
            log.info("job deleted", extra={"job": key, "phase": about.status.state.phase})
            return
        if old is None and not new.status.state.phase:
            log.info("job created", extra={"job": key, "queue": new.spec.queue})
        written = self._case(key).written
        if written is None or written.metadata.resource_version != new.metadata.resource_version:
            self._queue.add(key)  # our own write has been looked at already

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        was, entry = _entry(old), _entry(new)
        if old is not None and was is not None and (entry is None or entry.owner != was.owner):
            self._lose(_owner_key(old.metadata), was)  # deleted, or not its job's any longer
        if new is not None and entry is not None:
            key = _owner_key(new.metadata)
            self._expected.observe(key, entry.name)
            if self._case(key).ledger.put(entry, now=self._when(entry)):
                self._mark(key)

    def _lose(self, key: str, entry: pod_tracker.Entry) -> None:
        self._expected.observe(key, entry.name)
        case = self._case(key)
        case.ledger.drop(entry.uid, now=self._when(entry))
        # Its successor may need what nobody tells us of if it goes.
        case.objects_lost += any(kind not in WATCHED for kind, _ in case.objects)
        self._tidy(key)
        self._mark(key)

    def _mark(self, key: str) -> None:
        """Have a look at a job of whose pods something is new."""
        self._bustle.observe()
        if self._bustle.quiet_in():
            self._queue.add_after(key, _BUSY_PAUSE)
        else:
            self._queue.add(key)

    def _when(self, entry: pod_tracker.Entry) -> float:
        """When that happened to the pod: just now, or before we came as long ago as it says."""
        now = self._clock.monotonic()
        if self._early is None or entry.since is None:
            return now
        try:
            age = (self._clock.now() - times.parse(entry.since)).total_seconds()
        except times.TimeError:
            return now
        return now - max(age, 0.0)

    def _on_podgroup(self, old: PodGroup | None, new: PodGroup | None) -> None:
        about = new or old
        owner = about.metadata.controller if about is not None else None
        ours = (names.JOBS.api_version, names.JOBS.kind)
        if about is None or owner is None or (owner.api_version, owner.kind) != ours:
            return
        self._bustle.observe()
        key = _owner_key(about.metadata)
        case = self._case(key)
        books = case.ledger
        if new is None and case.podgroup and case.podgroup.metadata.uid == about.metadata.uid:
            case.podgroup = None  # it came and went before we had another look
        if new is not None and new.status.phase == PodGroupPhase.UNKNOWN:
            now = self._clock.monotonic()
            books.note(
                pod_tracker.Happening(event=JobEvent.JOB_UNKNOWN, owner=owner.uid, since=now)
            )
        else:
            books.strike(JobEvent.JOB_UNKNOWN)
        self._tidy(key)
        made = case.podgroup
        if new is None or made is None or made.metadata != new.metadata:
            self._queue.add(key)  # our own write has been looked at already

    def _on_object(self, old: Owned | None, new: Owned | None) -> None:
        """An object of a plugin's; if it went, by whomever, it is time to look after them."""
        owner = old.metadata.controller if old is not None and new is None else None
        if old is None or owner is None:
            return
        key = _owner_key(old.metadata)
        case = self._cases.get(key)
        if case is not None and case.uid == owner.uid:
            case.objects_lost += 1
            self._queue.add(key)

    def _on_command(self, old: Command | None, new: Command | None) -> None:
        if old is not None or new is None:
            return
        if new.target is None or not new.targets_kind(names.JOBS):
            if problem := target_kind_error(new):
                self._executor.complain_of(new.metadata, problem)
            return
        if self._early is not None:
            self._early.append(new)
            return
        order = Order(name=new.metadata.name, uid=new.metadata.uid, action=new.action)
        self._queue.add_item(f"{new.metadata.namespace}/{new.target.name}", order)

    def _on_priority(self, old: PriorityClass | None, new: PriorityClass | None) -> None:
        self._priorities_seen += 1  # gangs are worked out anew when their jobs are looked at

    # What is done.

    async def _reconcile(self, key: str) -> float | None:
        """Look at the job and act until nothing is left to do; seconds until the next look."""
        for _ in range(_STEPS):
            order = await self._next_order(key)
            job = self._latest(key)
            if job is None:
                await self._without_job(key, order)
                return None
            case = self._case(key)
            case.take_up(job)
            self._executor.arrived(key, job, case)
            if case.first_look:
                catch_up(job, case.ledger, now=self._clock.monotonic())
            self._drop_unseen(key, case.ledger)
            plan = self._plan(job, case)
            if plan is not case.plan:
                case.plan = plan
                # Those that are known may have been of the spec before.
                case.obstacles = obstacles_of(job) if case.first_look else {}
            case.first_look = False
            turn = Turn(key=key, job=job, case=case, plan=plan, order=order)
            effects = decide(self._view(turn), order)
            try:
                await self._executor.carry_out(turn, effects)
            except Exception:
                if turn.again_in is not None:  # what is due then must not wait for a late retry
                    self._queue.add_after(key, turn.again_in)
                raise
            if not any(isinstance(effect, SetStatus) for effect in effects):
                case.numbers_since = None
            if not turn.changed:
                if case.podgroup is not None or case.ledger.has_unseen:
                    turn.look_in(_UNSEEN_LOOK)
                return turn.again_in
        return 0.0

    def _drop_unseen(self, key: str, books: pod_tracker.Ledger) -> None:
        """Strike pods that we made and that went before any cache could show them."""
        for pod in books.overtaken(int(self._pods.resource_version or 0)):
            self._expected.observe(key, pod.name)
            books.drop(pod.uid, now=self._clock.monotonic())
        books.drop_unseen(self._expected.pending(key))

    def _view(self, turn: Turn) -> View:
        """What there is to see of the job, our own last writes included."""
        case, podgroup = turn.case, self._podgroup(turn.job, turn.case)
        meta = podgroup.metadata if podgroup is not None else ObjectMeta()
        return View(
            job=turn.job,
            ledger=case.ledger,
            gang=turn.plan.gang,
            now=self._clock.now(),
            uptime=self._clock.monotonic(),
            podgroup=podgroup,
            podgroup_leaving=bool(
                meta.deletion_timestamp or (meta.uid and meta.uid == case.podgroup_doomed)
            ),
            objects_due=case.objects_of != case.objects_wanted(turn.plan),
            claims_due=bool(turn.job.spec.volumes) and case.claims_of != turn.plan.of,
            obstacles=case.obstacles,
        )

    def _latest(self, key: str) -> Job | None:
        """The job as the cache shows it, or as our own write left it if that is newer."""
        seen, case = self._jobs.get(key), self._cases.get(key)
        if seen is None or case is None or case.written is None:
            return seen
        if case.written.metadata.uid == seen.metadata.uid and newer(case.written, seen):
            return case.written
        return seen

    def _podgroup(self, job: Job, case: Case) -> PodGroup | None:
        """The job's PodGroup, likewise."""
        seen = self._podgroups.get(f"{job.metadata.namespace}/{podgroups.name_of(job)}")
        made = case.podgroup
        if made is None:
            return seen
        late = self._clock.monotonic() - case.podgroup_since > UNSEEN_FOR
        shown = int(self._podgroups.resource_version or 0) >= int(
            made.metadata.resource_version or 0
        )
        if late or shown or (seen is not None and not newer(made, seen)):
            case.podgroup = None
            return seen
        return made

    def _plan(self, job: Job, case: Case) -> Plan:
        """What follows from the job's spec; worked out anew only when that has changed."""
        meta = job.metadata
        of = (meta.uid, meta.generation or meta.resource_version)
        known = case.plan
        if known is not None and (known.of, known.priorities) == (of, self._priorities_seen):
            return known
        values = {one.metadata.name: one.value for one in self._priorities}
        return Plan(
            of=of,
            priorities=self._priorities_seen,
            gang=podgroups.wanted(job, priorities=values),
            team=self._plugins.team(job),
        )

    async def _next_order(self, key: str) -> Order | None:
        """The oldest Command that nobody has taken back."""
        namespace = key.partition("/")[0]
        while True:
            order = self._queue.peek_item(key)
            if not isinstance(order, Order):
                return None
            there = self._commands.get(f"{namespace}/{order.name}")
            if there is not None and there.metadata.uid == order.uid:
                return order
            self._queue.pop_item(key)

    async def _without_job(self, key: str, order: Order | None) -> None:
        """No cache shows the job: wait for it if it is only late, else forget about it."""
        if order is None:
            self._tidy(key)
            return
        namespace, _, name = key.partition("/")
        if problem := target_name_error(name):
            await self._executor.refuse_command(key, order, problem)
            self._queue.add(key)
            return
        try:
            await self._client.get(names.JOBS, name, namespace=namespace, view=Job)
        except NotFoundError:
            await self._executor.drop_command(key, order)
            self._queue.add(key)  # there may be more of them
        else:
            raise RequeueError("the job is not in the cache yet")

    # Helpers.

    def _case(self, key: str) -> Case:
        case = self._cases.get(key)
        if case is None:
            case = self._cases[key] = Case()
        return case

    def _tidy(self, key: str) -> None:
        """Forget a job that is gone with all its pods."""
        case = self._cases.get(key)
        if case is not None and self._jobs.get(key) is None and not len(case.ledger):
            del self._cases[key]
            self._expected.delete(key)

    def statistics(self) -> dict[str, int]:
        """How many jobs are remembered, and how many keys wait for a worker."""
        return {"cases": len(self._cases), "queued": self._queue.depth()}


def _entry(pod: Pod | None) -> pod_tracker.Entry | None:
    return pod_tracker.read(pod) if pod is not None else None


def _owner_key(meta: ObjectMeta) -> str:
    owner = meta.controller
    return f"{meta.namespace}/{owner.name if owner else ''}"
