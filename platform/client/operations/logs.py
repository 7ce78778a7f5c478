"""Logs of a job or of one pod, continued after broken connections."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from ..calls import open_call
from ..effects import (
    Emit,
    Operation,
    Reply,
    Stream,
    StreamHead,
    TransportError,
    close_stream,
    read_chunk,
    sleep,
)
from ..errors import UnreachableError
from ..log_position import LineSplitter, LogLine, LogPosition, parse_line
from ..requests import QueryValue, check_name, get
from .scopes import ObjectRef

IDLE_TIMEOUT = 300.0
"""Seconds without a line after which a followed log is requested again: a connection that was
lost silently cannot be distinguished from a quiet log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    path: tuple[str, ...]
    query: dict[str, QueryValue]
    follow: bool
    tail_lines: int | None
    since_seconds: int | None
    has_prefix: bool


def logs(
    job: ObjectRef,
    *,
    task: str | None = None,
    pod: str | None = None,
    container: str | None = None,
    follow: bool = False,
    tail_lines: int | None = None,
    since_seconds: int | None = None,
    timestamps: bool = False,
    prefix: bool | None = None,
    previous: bool = False,
) -> Stream[str]:
    """Read the lines of the logs of a job, of one of its tasks or pods.

    After a broken connection they are continued: lines that were read before are recognized by
    their timestamps, so that none is delivered two times and none is left out, as long as the
    node still has them and timestamps of one container do not decrease.

    Args:
        job: which one.
        task: only pods of this task.
        pod: only this pod.
        container: only this container; by default all, of a pod its first one.
        follow: wait for further lines and pods until the job has finished.
        tail_lines: only the last lines, of each container.
        since_seconds: only lines that are not older.
        timestamps: begin each line with its time.
        prefix: begin each line with ``[pod]``; by default if several pods are read.
        previous: of one pod, read the container before its restart.

    Raises:
        NotFoundError: job, pod or container do not exist.
        UnreachableError: the connection was lost repeatedly.
    """
    if pod is not None and task is not None:
        raise ValueError("give either a task or a pod")
    if previous and pod is None:
        raise ValueError("previous requires a pod")
    if previous and follow:
        raise ValueError("a container that has ended cannot be followed")
    query: dict[str, QueryValue] = {"container": container, "follow": follow, "timestamps": True}
    if pod is None:
        path: tuple[str, ...] = ("logs",)
        query |= {"task": task, "prefix": True}
    else:
        path = ("pods", check_name("pod", pod), "log")
        query |= {"previous": previous or None}
    options = _Options(
        path=path,
        query=query,
        follow=follow,
        tail_lines=tail_lines,
        since_seconds=since_seconds,
        has_prefix=pod is None,
    )
    show_prefix = pod is None if prefix is None else prefix
    return _formatted(job, options, prefix=show_prefix, timestamps=timestamps)


def _formatted(job: ObjectRef, options: _Options, *, prefix: bool, timestamps: bool) -> Stream[str]:
    reader = _Reader(job, options)
    failures = 0
    while True:
        received = reader.lines
        head = yield from reader.open()
        splitter = LineSplitter()
        try:
            while chunk := (yield from read_chunk(head.stream)):
                for line in reader.new_lines(splitter.feed(chunk)):
                    yield Emit(line.format(prefix=prefix, timestamps=timestamps))
            break
        except TransportError as error:
            # The rest of the last line is read again.
            failures = 1 if reader.lines > received else failures + 1
            retries = job.session.retries
            if failures >= retries.attempts:
                raise UnreachableError(f"cannot read the log of {job}: {error}") from None
        yield from close_stream(head.stream)
        yield from sleep(retries.delay(failures, job.session.timing))
    for line in reader.new_lines(splitter.finish()):
        yield Emit(line.format(prefix=prefix, timestamps=timestamps))


class _Reader:
    """The connections of one log, and the lines read from them."""

    def __init__(self, job: ObjectRef, options: _Options) -> None:
        self._job = job
        self._options = options
        self._position = LogPosition()
        self._timing = job.session.timing
        self._start = self._timing.monotonic()
        self._clock_offset = timedelta()
        self.lines = 0
        """Number of lines delivered."""

    def open(self) -> Operation[StreamHead]:
        """Request the log: from the start, or from before the last line that was read."""
        query = dict(self._options.query)
        since = self._options.since_seconds
        resumed = self._position.since_seconds(self._timing.now() + self._clock_offset)
        if resumed is None:
            query["tail_lines"] = self._options.tail_lines
        if since is not None:
            since += int(self._timing.monotonic() - self._start)
            resumed = since if resumed is None else min(since, resumed)
        query["since_seconds"] = resumed
        self._position.begin_stream()
        idle_timeout = IDLE_TIMEOUT if self._options.follow else self._job.session.timeout
        head = yield from open_call(
            self._job.session,
            get(self._job.path(*self._options.path, query=query)),
            accept="text/plain",
            idle_timeout=idle_timeout,
        )
        self._clock_offset = _clock_offset(head.reply, self._timing.now())
        return head

    def new_lines(self, lines: Iterator[str]) -> Iterator[LogLine]:
        """Yield the lines that were not read before."""
        for text in lines:
            line = parse_line(text, has_prefix=self._options.has_prefix)
            if self._position.advance(line):
                self.lines += 1
                yield line


def _clock_offset(reply: Reply, now: datetime) -> timedelta:
    """Return how far the server's clock is ahead, by the ``Date`` of its response."""
    try:
        date = parsedate_to_datetime(reply.headers.get("date", ""))
    except ValueError:
        return timedelta()
    return (date if date.tzinfo else date.replace(tzinfo=UTC)) - now
