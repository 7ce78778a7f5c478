"""The logs of all pods of a job as one text: whole lines, each as soon as it is read.

The log of a container is a `_Source`. One with lines that were not read is queued, and a limited
number of logs are read at a time, in the order of the queue, each to its end. So the memory is
bounded, and without ``follow`` any number of pods can be read. With ``follow`` each container that
runs needs its own stream: a job with too many of them is rejected, and one that grows beyond
the limit later is reported in the text. Nothing is omitted silently: where lines are missing, the
text has a line that begins with `NOTICE`, and if they may still exist, the transfer is broken.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...kube.errors import (
    UNAVAILABLE_ERRORS,
    ApiError,
    BadRequestError,
    ConnectionLostError,
    NotFoundError,
)
from ..http.text_stream import TextOutput
from ..jobs.pod_views import JobPod
from ..jobs.pods import JobPods
from ..problems import ProblemError
from .containers import LogOptions, LogStreams, open_log
from .lines import LineAssembler, LogLine, LogPosition, format_lines
from .pod_watch import PodWatch

MAX_FOLLOWED = 64
"""Containers of a job that can be followed at a time."""

CONCURRENT_READS = 8
"""Logs of a job that are read at a time, unless they are followed."""

MAX_ATTEMPTS = 3
"""Attempts to read a log while the server or the node is unavailable; while a pod runs that is
followed, there is no limit."""

RETRY_DELAY, MAX_RETRY_DELAY = 1.0, 30.0
"""Seconds before such an attempt; doubled each time."""

START_DELAY = 5.0
"""Seconds after which the response starts though no log has been opened: kubelets send nothing
until a followed log has a line."""

RECHECK_INTERVAL = 15.0
"""Seconds after which a log is read on that has ended while its container runs."""

FINISH_INTERVAL = 2.0
"""Seconds between checks whether the job has finished, while no log is read."""

NOTICE = "[batholith] "


class IncompleteLogsError(Exception):
    """Some lines could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOptions:
    """What to read of the logs of a job."""

    task: str = ""
    container: str = ""
    follow: bool = False
    tail_lines: int | None = None
    """For each container."""

    since_seconds: int | None = None
    timestamps: bool = False
    prefix: bool = False
    """Whether each line names its pod, and its container if several of the pod are read."""


class _Source:
    """The log of one container over its restarts."""

    def __init__(self, pod: JobPod, container: str, *, prefix: str, joined: bool) -> None:
        self.pod = pod
        self.container = container
        self.prefix = prefix.encode()
        self.deleted = False
        self.busy = False
        """Is queued, is read, or waits to be read again after an error."""
        self.position = LogPosition()
        self.failures = 0
        """Attempts that failed since the log was last read."""
        started = pod.container_status(container).has_started
        self.is_tail_pending = started and not joined
        """Only the end of what the container has written may be requested."""
        self.read_restarts = self.restarts - 1 if self.is_tail_pending else -1
        """Number of the last run of the container that was read to its end. Of a container that
        started before the request, earlier runs count as read."""

    @property
    def restarts(self) -> int:
        """Number of restarts of the container, and so the number of its newest run."""
        return self.pod.container_status(self.container).restart_count

    @property
    def is_unread(self) -> bool:
        """Whether there is a run that was not read to its end."""
        status = self.pod.container_status(self.container)
        return status.has_started and status.restart_count > self.read_restarts

    @property
    def is_over(self) -> bool:
        """Whether nothing will be written any more."""
        return self.deleted or self.pod.is_finished

    @property
    def is_running(self) -> bool:
        """Whether the container runs, by the last status of its pod."""
        return self.pod.container_status(self.container).state.running is not None


class MergedLogs:
    """Writes the logs of a job's pods into one text."""

    def __init__(
        self,
        pods: JobPods,
        options: MergeOptions,
        *,
        streams: LogStreams,
        user: str,
    ) -> None:
        self._pods = pods
        self._options = options
        self._streams = streams
        self._user = user
        self._watch = PodWatch(pods, self._on_pod)
        self._sources: dict[tuple[str, str], _Source] = {}
        """By uid of the pod and container."""
        self._queue: deque[_Source] = deque()
        self._queued = asyncio.Event()
        self._busy = 0
        """Number of sources that are busy."""
        self._reads = asyncio.Semaphore(MAX_FOLLOWED if options.follow else CONCURRENT_READS)
        self._listed = False
        """Pods that are observed from now on have joined during the request."""
        self._changed = asyncio.Event()
        self._helpers: set[asyncio.Task[None]] = set()
        self._missing: list[str] = []
        """Why lines are missing that may still exist."""
        self._reported_limit = False

    async def prepare(self) -> None:
        """List the pods.

        Raises:
            ProblemError: 422, the options do not fit the job; 503, too many logs are open.
            ApiError: the caller may not list pods.
        """
        await self._watch.list()
        self._listed = True
        self._check_options()
        if self._queue:
            self._streams.check(self._user)

    def _check_options(self) -> None:
        options = self._options
        tasks = [task.name for task in self._pods.summary().tasks]
        if options.task and options.task not in tasks:
            raise _invalid("task", f"the job has no task {options.task!r}: {', '.join(tasks)}")
        if options.container and self._watch.known and not self._sources:
            text = f"no pod of the task or job has a container {options.container!r}"
            raise _invalid("container", text)
        active = sum(not source.is_over for source in self._sources.values())
        if options.follow and active > MAX_FOLLOWED:
            text = f"{active} containers have not ended, and at most {MAX_FOLLOWED} can be "
            text += "followed at a time: select a task or a container, or read without follow"
            raise _invalid("follow", text)

    async def run(self, output: TextOutput) -> None:
        """Write until everything is read; with ``follow`` until the job has finished, too.

        Raises:
            IncompleteLogsError: lines are missing, as the text reports.
            ApiError: the caller may not read a log.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                self._add_helper(tasks, _start_later(output))
                self._add_helper(tasks, self._dispatch(tasks, output))
                if self._options.follow:
                    self._add_helper(tasks, self._watch.run())
                await self._wait_finished()
                for each in tuple(self._helpers):
                    each.cancel()
        except ExceptionGroup as group:
            error = _first(group)
            if output.started.is_set() and isinstance(error, ApiError | ConnectionLostError):
                await output.write(f"{NOTICE}cannot read on: {error}\n".encode())
            raise error from None
        if self._missing:
            raise IncompleteLogsError("; ".join(self._missing))

    def _add_helper(self, tasks: asyncio.TaskGroup, work: Coroutine[Any, Any, None]) -> None:
        """Run *work* until everything is read."""
        helper = tasks.create_task(work)
        self._helpers.add(helper)
        helper.add_done_callback(self._helpers.discard)

    # -- which logs are to be read

    def _on_pod(self, pod: JobPod, deleted: bool) -> None:
        if self._options.task and self._pods.task_of(pod) != self._options.task:
            return
        containers = pod.log_containers(self._options.container)
        for container in containers:
            key = pod.metadata.uid, container
            source = self._sources.get(key)
            if source is None:
                if deleted:
                    continue
                name = pod.metadata.name
                shown = f"[{name} {container}] " if len(containers) > 1 else f"[{name}] "
                prefix = shown if self._options.prefix else ""
                source = _Source(pod, container, prefix=prefix, joined=self._listed)
                self._sources[key] = source
            source.pod = pod
            source.deleted = source.deleted or deleted
            self._enqueue(source)
            self._forget(source)
        self._changed.set()

    def _enqueue(self, source: _Source) -> None:
        if source.is_unread and not source.busy:
            source.busy = True
            self._busy += 1
            self._queue.append(source)
            self._queued.set()

    def _forget(self, source: _Source) -> None:
        """Forget the container of a deleted pod once it was read."""
        if source.deleted and not source.busy:
            self._sources.pop((source.pod.metadata.uid, source.container), None)

    async def _wait_finished(self) -> None:
        while True:
            self._changed.clear()
            if not self._busy and not self._options.follow:
                return
            if self._is_complete and await self._has_job_finished():
                await self._watch.list()
                if self._is_complete:
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(FINISH_INTERVAL if self._is_complete else None):
                    await self._changed.wait()

    @property
    def _is_complete(self) -> bool:
        """Whether all pods that were observed have ended and are read."""
        return not self._busy and all(source.is_over for source in self._sources.values())

    async def _has_job_finished(self) -> bool:
        try:
            return await self._pods.is_job_finished()
        except UNAVAILABLE_ERRORS:
            return False

    # -- reading

    async def _dispatch(self, tasks: asyncio.TaskGroup, output: TextOutput) -> None:
        while True:
            while not self._queue:
                self._queued.clear()
                await self._queued.wait()
            await self._report_limit(output)
            await self._reads.acquire()
            await self._streams.acquire(self._user)
            read = tasks.create_task(self._read_once(tasks, self._queue.popleft(), output))
            # Not in the task, which may be cancelled before it begins.
            read.add_done_callback(self._release_stream)

    def _release_stream(self, _: asyncio.Task[None]) -> None:
        self._streams.release(self._user)
        self._reads.release()

    async def _report_limit(self, output: TextOutput) -> None:
        """Report once that logs wait until others end, maybe for as long as the job runs."""
        has_slot = not self._reads.locked() and self._streams.is_available(self._user)
        if self._options.follow and not has_slot and not self._reported_limit:
            self._reported_limit = True
            text = f"at most {MAX_FOLLOWED} logs of a job, and a limited number in all, can be "
            await output.write(f"{NOTICE}{text}followed at a time: others wait\n".encode())

    async def _read_once(
        self, tasks: asyncio.TaskGroup, source: _Source, output: TextOutput
    ) -> None:
        delay = await self._read(source, output)
        if delay:
            self._add_helper(tasks, self._retry_later(source, delay))
            return
        if self._options.follow and source.is_running and not source.is_unread:
            self._add_helper(tasks, self._recheck_later(source, source.restarts))
        self._release(source)

    def _release(self, source: _Source) -> None:
        source.busy = False
        self._busy -= 1
        self._enqueue(source)
        self._forget(source)
        self._changed.set()

    async def _retry_later(self, source: _Source, delay: float) -> None:
        await asyncio.sleep(delay)
        self._release(source)

    async def _recheck_later(self, source: _Source, restarts: int) -> None:
        """Read on if the container still runs: the server has ended the log, not the program."""
        await asyncio.sleep(RECHECK_INTERVAL)
        if not source.busy and source.is_running and source.restarts == restarts:
            source.read_restarts = restarts - 1
            self._enqueue(source)

    async def _read(self, source: _Source, output: TextOutput) -> float:
        """Read a container's log to its end; return the delay of another attempt, if one is due."""
        restarts = source.restarts
        pod = source.pod.metadata.name
        try:
            await self._read_earlier_run(source, restarts, output)
            await self._copy(source, output)
        except NotFoundError as error:
            if not source.deleted and source.failures < MAX_ATTEMPTS:
                source.failures += 1  # the watch may lag behind, or the node is just registered
                return RETRY_DELAY
            text = f"the log of pod {pod} is lost: {error.message}"
            await output.write(f"{NOTICE}{text}\n".encode())
        except (*UNAVAILABLE_ERRORS, BadRequestError) as error:
            source.failures += 1
            has_time = self._options.follow and not source.is_over
            if has_time or source.failures < MAX_ATTEMPTS:
                if source.failures == MAX_ATTEMPTS:
                    text = f"{NOTICE}cannot read the log of pod {pod}, will retry: {error}\n"
                    await output.write(text.encode())
                delay: float = RETRY_DELAY * 2 ** (source.failures - 1)
                return min(delay, MAX_RETRY_DELAY)
            text = f"cannot read the log of pod {pod}: {error}"
            self._missing.append(text)
            await output.write(f"{NOTICE}{text}\n".encode())
        source.failures = 0
        source.read_restarts = max(source.read_restarts, restarts)
        return 0

    async def _read_earlier_run(self, source: _Source, restarts: int, output: TextOutput) -> None:
        """Read the run before the newest one if it was not read; report runs before that."""
        missed = restarts - source.read_restarts - 1
        if missed < 1:
            return
        lost = missed - 1
        try:
            await self._copy(source, output, previous=True)
        except (BadRequestError, NotFoundError):
            lost += 1
        source.read_restarts = restarts - 1
        if lost:
            text = f"the logs of {lost} runs of container {source.container} of pod "
            text += f"{source.pod.metadata.name} are lost"
            await output.write(f"{NOTICE}{text}\n".encode())

    async def _copy(self, source: _Source, output: TextOutput, *, previous: bool = False) -> None:
        """Copy what was not read of a log."""
        given, meta = self._options, source.pod.metadata
        is_first = source.is_tail_pending
        options = LogOptions(
            container=source.container,
            follow=given.follow and not previous,
            previous=previous,
            timestamps=True,
            since_time=source.position.since_time,
            since_seconds=given.since_seconds if is_first else None,
            tail_lines=given.tail_lines if is_first else None,
        )
        source.position.begin_stream()
        assembler = LineAssembler()
        async with open_log(self._pods.client, meta.namespace, meta.name, options) as chunks:
            await output.start()
            async for chunk in chunks:
                before = source.position.lines
                await self._write(source, assembler.feed(chunk), output)
                if source.position.lines > before:
                    source.is_tail_pending, source.failures = False, 0
        await self._write(source, assembler.finish(), output)
        source.is_tail_pending = False

    async def _write(self, source: _Source, lines: Iterator[LogLine], output: TextOutput) -> None:
        unread = filter(source.position.advance, lines)
        timestamps = self._options.timestamps
        for batch in format_lines(unread, prefix=source.prefix, timestamps=timestamps):
            await output.write(batch)


async def _start_later(output: TextOutput) -> None:
    await asyncio.sleep(START_DELAY)
    await output.start()


def _invalid(field: str, message: str) -> ProblemError:
    return ProblemError(422, f"{field}: {message}", errors=({"field": field, "message": message},))


def _first(group: ExceptionGroup[Exception]) -> Exception:
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
