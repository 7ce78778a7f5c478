"""Which events of a job are sent to which URL, as annotations of jobs and queues state it. Pure."""

import re
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from urllib.parse import urlsplit

import msgspec

from .job import FINAL_PHASES, JobPhase
from .names import NOTIFY, NOTIFY_EVENTS
from .run_times import limit_of, warning_of

NONE = "none"
"""Value of the annotation of a job that is not to have the notifications of its queue."""
MAX_URL = 2048
DEFAULT_WARNING = 0.1
"""Fraction of the time limit that is left when a job without a warning is notified of it."""

_URL = re.compile(
    r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?([/?][!-\"$-\[\]-~]*)?"
)
"""Also in the policies for clusters without webhooks."""


class NotifyEvent(StrEnum):
    """What may be notified of."""

    START = "start"
    END = "end"
    """The job has ended, however it did."""
    FAILURE = "failure"
    TIME_LIMIT = "time-limit"
    """The time limit is near."""


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """Where the events of a job are sent to."""

    url: str
    events: frozenset[NotifyEvent]
    warn_after: float | None = None
    """Seconds in phase Running after which the time limit is near; ``None`` without a limit."""

    def wants(self, event: NotifyEvent) -> bool:
        """Return whether *event* is sent."""
        return includes(self.events, event)


def subscription_of(job: Mapping[str, str], queue: Mapping[str, str]) -> Subscription | None:
    """Return the subscription in the annotations of a job, else of its queue; ``None`` for none.

    Malformed annotations, which no webhook has seen, count as missing.
    """
    chosen = job if NOTIFY in job else queue
    url = chosen.get(NOTIFY, NONE)
    if url == NONE or any(errors_of(chosen)):
        return None
    limit = limit_of(job)
    return Subscription(
        url=url,
        events=_events(chosen),
        warn_after=None if limit is None else limit - (warning_of(job) or limit * DEFAULT_WARNING),
    )


def includes(events: Collection[NotifyEvent], event: NotifyEvent) -> bool:
    """Return whether *event* is one of *events*: a failure is an end, too."""
    return event in events or (event is NotifyEvent.FAILURE and NotifyEvent.END in events)


def event_of_phase(phase: str) -> NotifyEvent | None:
    """Return the event that it is to enter *phase*, if it is one."""
    if phase == JobPhase.RUNNING:
        return NotifyEvent.START
    if phase == JobPhase.FAILED:
        return NotifyEvent.FAILURE
    return NotifyEvent.END if phase in FINAL_PHASES else None


def errors_of(annotations: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong with the annotations of a job or queue: name, value and text."""
    url = annotations.get(NOTIFY)
    if url is not None and url != NONE and (text := url_error(url)):
        yield NOTIFY, url, text
    events = annotations.get(NOTIFY_EVENTS)
    if events is None:
        return
    if url is None or url == NONE:
        yield NOTIFY_EVENTS, events, f"{NOTIFY} is missing"
    elif set(events.split(",")) - set(NotifyEvent):
        yield NOTIFY_EVENTS, events, f"must be some of {', '.join(NotifyEvent)}"


def url_error(url: str) -> str:
    """Return why *url* cannot be notified; empty if it can."""
    text = "must be a URL of http or https with a host, without user and fragment"
    if len(url) > MAX_URL or not _URL.fullmatch(url):
        return text
    try:
        split = urlsplit(url)
        return "" if split.hostname and split.port != 0 else text
    except ValueError:
        return text


def _events(annotations: Mapping[str, str]) -> frozenset[NotifyEvent]:
    text = annotations.get(NOTIFY_EVENTS)
    return frozenset(NotifyEvent if text is None else map(NotifyEvent, text.split(",")))
