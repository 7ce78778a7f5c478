"""The blocking client."""

import contextlib
from collections.abc import Callable, Generator
from typing import Concatenate, ParamSpec, Self, TypeAlias, TypeVar, Unpack

import httpx

from ..wire.commands import CommandResult
from ..wire.jobs import JobKindName, JobSummary
from . import handles
from .arguments import explicit
from .blocking_executor import BlockingExecutor
from .calls import Session
from .effects import Operation, Stream
from .facade import Facade, HasRef, document, ref_of_key
from .operations import commands as command_ops
from .operations import flows as flow_ops
from .operations import history as history_ops
from .operations import jobs as job_ops
from .operations import logs as log_ops
from .operations import nodes as node_ops
from .operations import queues as queue_ops
from .operations import waiting
from .operations.scopes import Collection, ObjectRef, Server
from .options import ClientOptions, prepare, with_settings
from .timing import Retries

P = ParamSpec("P")
T = TypeVar("T")
ScopeT = TypeVar("ScopeT")
_Facade: TypeAlias = Facade[BlockingExecutor, ScopeT]


def _blocking(
    function: Callable[Concatenate[ScopeT, P], Operation[T]],
) -> Callable[Concatenate[_Facade[ScopeT], P], T]:
    """Return a method that runs an operation."""
    operation = explicit(function)

    def method(self: _Facade[ScopeT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._executor.run(operation(self._scope, *args, **kwargs))

    document(method, function, by_name=False)
    return method


def _iterating(
    function: Callable[Concatenate[ScopeT, P], Stream[T]],
) -> Callable[Concatenate[_Facade[ScopeT], P], Generator[T, None, None]]:
    """Return a method that yields the items of a stream operation."""
    operation = explicit(function)

    def method(
        self: _Facade[ScopeT], /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[T, None, None]:
        return self._executor.iterate(operation(self._scope, *args, **kwargs))

    document(method, function, by_name=False, items=Generator)
    return method


def _named(
    function: Callable[Concatenate[ObjectRef, P], Operation[T]],
) -> Callable[Concatenate[_Facade[Collection], str | HasRef, P], T]:
    """Return a method of a collection that runs an operation on one of its objects."""
    operation = explicit(function)

    def method(
        self: _Facade[Collection], key: str | HasRef, /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._executor.run(operation(ref_of_key(self._scope, key), *args, **kwargs))

    document(method, function, by_name=True)
    return method


def _named_iterating(
    function: Callable[Concatenate[ObjectRef, P], Stream[T]],
) -> Callable[Concatenate[_Facade[Collection], str | HasRef, P], Generator[T, None, None]]:
    """Return a method of a collection that yields the items of one of its objects."""
    operation = explicit(function)

    def method(
        self: _Facade[Collection], key: str | HasRef, /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[T, None, None]:
        return self._executor.iterate(operation(ref_of_key(self._scope, key), *args, **kwargs))

    document(method, function, by_name=True, items=Generator)
    return method


def _updating(
    function: Callable[Concatenate[ObjectRef, P], Operation[JobSummary]],
) -> Callable[Concatenate["JobHandle", P], "JobHandle"]:
    """Return a method that updates the fields of a handle and returns it."""
    operation = explicit(function)

    def method(self: "JobHandle", /, *args: P.args, **kwargs: P.kwargs) -> "JobHandle":
        self.info = self._executor.run(operation(self._scope, *args, **kwargs))
        return self

    document(method, function, by_name=False, returns=Self)
    return method


def _commanding(
    function: Callable[Concatenate[ObjectRef, P], Operation[CommandResult]],
) -> Callable[Concatenate["JobHandle", P], CommandResult]:
    """Return a method that sends a command, and updates a handle that has waited for it."""
    operation = explicit(function)

    def method(self: "JobHandle", /, *args: P.args, **kwargs: P.kwargs) -> CommandResult:
        command = operation(self._scope, *args, **kwargs)
        result, info = self._executor.run(handles.then_read(self._scope, command))
        self.info = info or self.info
        return result

    document(method, function, by_name=False)
    return method


class JobHandle(handles.JobState, Facade[BlockingExecutor, ObjectRef]):
    """A job with its operations; its fields are those of the last read.

    A command with ``wait`` reads the job at its end.
    """

    def __init__(self, executor: BlockingExecutor, scope: ObjectRef, info: JobSummary) -> None:
        handles.JobState.__init__(self, info)
        Facade.__init__(self, executor, scope)

    @property
    def ref(self) -> ObjectRef:
        """The object."""
        return self._scope

    refresh = _updating(job_ops.get_job)
    wait = _updating(waiting.wait)
    scale = _updating(job_ops.scale)
    complete_submission = _updating(job_ops.complete_submission)
    delete = _blocking(job_ops.delete)
    manifest = _blocking(job_ops.get_manifest)
    pods = _blocking(job_ops.pods)
    events = _blocking(job_ops.events)
    timeline = _blocking(job_ops.timeline)
    why = _blocking(job_ops.why)
    logs = _iterating(log_ops.logs)
    watch = _iterating(waiting.watch_job)
    suspend = _commanding(command_ops.suspend)
    resume = _commanding(command_ops.resume)
    restart = _commanding(command_ops.restart)
    abort = _commanding(command_ops.abort)
    terminate = _commanding(command_ops.terminate)
    complete = _commanding(command_ops.complete)
    commands = _iterating(command_ops.list_commands)
    get_command = _blocking(command_ops.get_command)
    history = _iterating(history_ops.history_of_job)


def _opening(
    function: Callable[Concatenate[Collection, P], Operation[JobSummary]],
) -> Callable[Concatenate["Jobs", P], JobHandle]:
    """Return a method of a collection that returns a handle."""
    operation = explicit(function)

    def method(self: "Jobs", /, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        return self.handle(self._executor.run(operation(self._scope, *args, **kwargs)))

    document(method, function, by_name=False, returns=JobHandle)
    return method


def _listing(
    function: Callable[Concatenate[Collection, P], Stream[JobSummary]],
) -> Callable[Concatenate["Jobs", P], Generator[JobHandle, None, None]]:
    """Return a method of a collection that yields handles."""
    operation = explicit(function)

    def method(
        self: "Jobs", /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[JobHandle, None, None]:
        items = self._executor.iterate(operation(self._scope, *args, **kwargs))

        def handles_of_items() -> Generator[JobHandle, None, None]:
            with contextlib.closing(items):
                for info in items:
                    yield self.handle(info)

        return handles_of_items()

    document(method, function, by_name=False, returns=Generator[JobHandle, None, None])
    return method


class Jobs(Facade[BlockingExecutor, Collection]):
    """Jobs of one kind; a job is given by its name, ``namespace/name`` or a handle."""

    submit = _opening(job_ops.submit)
    validate = _blocking(job_ops.validate)
    simulate = _blocking(job_ops.simulate)
    list = _listing(job_ops.list_jobs)
    page = _blocking(job_ops.page_of_jobs)
    watch = _iterating(waiting.watch_jobs)
    bulk = _blocking(command_ops.bulk)

    delete = _named(job_ops.delete)
    scale = _named(job_ops.scale)
    complete_submission = _named(job_ops.complete_submission)
    manifest = _named(job_ops.get_manifest)
    pods = _named(job_ops.pods)
    events = _named(job_ops.events)
    timeline = _named(job_ops.timeline)
    why = _named(job_ops.why)
    wait = _named(waiting.wait)
    logs = _named_iterating(log_ops.logs)
    suspend = _named(command_ops.suspend)
    resume = _named(command_ops.resume)
    restart = _named(command_ops.restart)
    abort = _named(command_ops.abort)
    terminate = _named(command_ops.terminate)
    complete = _named(command_ops.complete)
    commands = _named_iterating(command_ops.list_commands)
    get_command = _named(command_ops.get_command)
    history = _named_iterating(history_ops.history_of_job)

    def get(self, key: str | HasRef) -> JobHandle:
        """Read a job by its name or ``namespace/name``.

        Raises:
            NotFoundError: it does not exist.
        """
        return self.handle(self._executor.run(job_ops.get_job(ref_of_key(self._scope, key))))

    def handle(self, info: JobSummary) -> JobHandle:
        """Return the handle of a job that was read."""
        return JobHandle(self._executor, handles.ref_of(info, self._scope), info)

    def of_kind(self, kind: str) -> "Jobs":
        """Return the jobs of another kind: ``batchjobs``, ``pytorchjobs``, ``mpijobs``, …

        Raises:
            ValueError: there is no such kind.
        """
        return Jobs(self._executor, self._scope.of_kind(kind))


class Queues(Facade[BlockingExecutor, Collection]):
    """Queues."""

    list = _iterating(queue_ops.list_queues)
    get = _blocking(queue_ops.get_queue)
    create = _blocking(queue_ops.create_queue)
    change = _blocking(queue_ops.change_queue)
    delete = _blocking(queue_ops.delete_queue)
    open = _blocking(queue_ops.open_queue)
    close = _blocking(queue_ops.close_queue)
    commands = _iterating(queue_ops.queue_commands)
    usage = _blocking(queue_ops.queue_usage)
    watch = _iterating(queue_ops.watch_queues)


class PodGroups(Facade[BlockingExecutor, Collection]):
    """PodGroups."""

    list = _iterating(queue_ops.list_podgroups)
    get = _named(queue_ops.get_podgroup)


class Flows(Facade[BlockingExecutor, Collection]):
    """JobFlows."""

    list = _iterating(flow_ops.list_flows)
    get = _named(flow_ops.get_flow)


class CronJobs(Facade[BlockingExecutor, Collection]):
    """CronJobs of Volcano."""

    list = _iterating(flow_ops.list_cronjobs)
    get = _named(flow_ops.get_cronjob)
    suspend = _named(flow_ops.suspend_cronjob)
    resume = _named(flow_ops.resume_cronjob)
    start = _named(flow_ops.start_now)


class History(Facade[BlockingExecutor, Server]):
    """Jobs that may be deleted, and usage."""

    list = _iterating(history_ops.list_history)
    get = _blocking(history_ops.get_history)
    usage = _blocking(history_ops.usage)


class Nodes(Facade[BlockingExecutor, Server]):
    """Nodes."""

    reservations = _blocking(node_ops.reservations)


class Client:
    """Client of the REST API that blocks; safe for use by several threads.

    .. code-block:: python

        with Client() as client:
            job = client.jobs.submit(Job("hello").task("main", image="busybox"))
            job.wait(timeout=60)
    """

    @explicit
    def __init__(self, url: str | None = None, **options: Unpack[ClientOptions]) -> None:
        """Find address and credentials; the options are those of :class:`~.options.ClientOptions`.

        Raises:
            ConfigError: there are none, or a token would be exposed.
        """
        prepared = prepare(url, options)
        self._bind(BlockingExecutor(httpx.Client(**prepared.http)), prepared.session)

    def _bind(self, executor: BlockingExecutor, session: Session) -> None:
        server = Server(session)
        self._executor = executor
        self._session = session
        self.jobs = Jobs(executor, Collection(server, JobKindName.JOBS))
        self.queues = Queues(executor, Collection(server, "queues"))
        self.podgroups = PodGroups(executor, Collection(server, "podgroups"))
        self.flows = Flows(executor, Collection(server, "jobflows"))
        self.cronjobs = CronJobs(executor, Collection(server, "cronjobs"))
        self.history = History(executor, server)
        self.nodes = Nodes(executor, server)

    @property
    def url(self) -> str:
        """Address of the REST API."""
        return self._session.url

    @property
    def namespace(self) -> str:
        """Namespace of operations that name none."""
        return self._session.namespace

    @explicit
    def with_options(
        self,
        *,
        namespace: str | None = None,
        timeout: float | None = None,
        retries: Retries | None = None,
    ) -> Self:
        """Return a client with other settings and the same connections."""
        session = with_settings(self._session, namespace, timeout, retries)
        client = object.__new__(type(self))
        client._bind(self._executor, session)
        return client

    def close(self) -> None:
        """Close the connections, also those of clients with other options."""
        self._executor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}, namespace {self.namespace}>"
