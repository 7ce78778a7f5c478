"""The page of the queues: a tree with what each has and may have, and how long its gangs wait."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from starlette.responses import Response
from starlette.types import ASGIApp

from ...model import durations
from ...model.quantity import parse
from ...wire.queues import PodGroupPage, Queue, QueuePage, QueueUsage
from .live import ChangeFilter
from .rest import RestError, rest_path
from .web import Page

BAR = 180
"""Width of a bar."""
FIRST = ("cpu", "memory")
"""Resources in the first columns."""
MAX_RESOURCES = 6
AGES = ((60, "under 1 min"), (600, "1 to 10 min"), (3600, "10 min to 1 h"), (86400, "1 h to 1 d"))
"""Upper limits of ages in seconds, with their names."""
OLDEST = "over 1 d"
WAITING = ("Pending", "Inqueue")
MAX_WAITING = 500
"""Waiting PodGroups that are counted by age: the oldest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One resource of a queue, as a bar on the scale of all queues."""

    used: str
    used_width: float
    marks: Sequence[tuple[str, str, float]]
    """Name, quantity and position of guarantee, deserved share and limit, where they are set."""

    @property
    def text(self) -> str:
        """The numbers of the bar."""
        marks = (f"{name} {quantity}" for name, quantity, _ in self.marks)
        return ", ".join((f"used {self.used}", *marks))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A queue of the tree."""

    queue: Queue
    depth: int
    levels: Mapping[str, Level]
    running: int
    waiting: int


async def show_queues(page: Page) -> Response:
    """Show all queues that exist."""
    queues = [each async for each in page.rest.items(rest_path("queues"), QueuePage)]
    resources = _resources(queues)
    scales = {resource: _scale(queues, resource) for resource in resources}
    rows = [
        QueueRow(
            queue=queue,
            depth=depth,
            levels={each: _level(queue, each, scales[each]) for each in resources},
            running=queue.podgroups.get("Running", 0),
            waiting=sum(queue.podgroups.get(phase, 0) for phase in WAITING),
        )
        for queue, depth in tree(queues)
    ]
    query = {"phase": WAITING, "sort": "created", "limit": MAX_WAITING}
    problem, waiting = "", PodGroupPage()
    try:
        waiting = await page.rest.get(rest_path("podgroups"), PodGroupPage, query)
    except RestError as error:
        problem = error.detail
    return page.render(
        "queues_list.html" if page.is_fragment else "queues.html",
        rows=rows,
        resources=resources,
        bar=BAR,
        ages=[*(name for _, name in AGES), OLDEST],
        waiting=_by_age(waiting, page.now),
        shown=len(waiting.items),
        total=waiting.total or 0,
        problem=problem,
    )


async def show_queue(page: Page) -> Response:
    """Show what one queue has, may have, and has used."""
    usage = await page.rest.get(rest_path("queues", page.path["name"], "usage"), QueueUsage)
    seconds = 0.0 if usage.past is None else usage.past.half_life_seconds
    return page.render("queue.html", usage=usage, half_life=durations.human(seconds))


def tree(queues: Sequence[Queue]) -> Iterator[tuple[Queue, int]]:
    """Yield the queues with their depth, each after its parent, by name.

    Queues whose parent does not exist, or is a descendant, are yielded at the top.
    """
    names = {queue.name for queue in queues}
    children: dict[str, list[Queue]] = defaultdict(list)
    for queue in sorted(queues, key=lambda each: each.name):
        children[queue.parent if queue.parent in names else ""].append(queue)
    seen: set[str] = set()
    pending = [(queue, 0) for queue in reversed(children[""])]
    left = sorted(queues, key=lambda each: each.name, reverse=True)
    while pending or left:
        queue, depth = pending.pop() if pending else (left.pop(), 0)
        if queue.name in seen:
            continue
        seen.add(queue.name)
        yield queue, depth
        pending += [(each, depth + 1) for each in reversed(children[queue.name])]


def _quantities(queue: Queue) -> Iterator[tuple[str, Mapping[str, str]]]:
    yield "guaranteed", queue.guarantee
    yield "deserved", queue.deserved
    yield "limit", queue.capability


def _resources(queues: Sequence[Queue]) -> list[str]:
    """Return the resources of the columns: those that any queue has."""
    found = {
        resource
        for queue in queues
        for amounts in (queue.allocated, *(amounts for _, amounts in _quantities(queue)))
        for resource in amounts
        if resource != "pods"
    }
    return sorted(found, key=lambda each: (each not in FIRST, each))[:MAX_RESOURCES]


def _scale(queues: Sequence[Queue], resource: str) -> float:
    return max(
        (
            _number(amounts[resource])
            for queue in queues
            for amounts in (queue.allocated, *(amounts for _, amounts in _quantities(queue)))
            if resource in amounts
        ),
        default=0.0,
    )


def _level(queue: Queue, resource: str, scale: float) -> Level:
    used = queue.allocated.get(resource, "0")
    return Level(
        used=used,
        used_width=_position(used, scale),
        marks=[
            (name, amounts[resource], _position(amounts[resource], scale))
            for name, amounts in _quantities(queue)
            if resource in amounts
        ],
    )


def _position(quantity: str, scale: float) -> float:
    return round(BAR * _number(quantity) / scale, 1) if scale else 0.0


def _number(quantity: str) -> float:
    return parse(quantity).milli_value() / 1000


def _by_age(waiting: PodGroupPage, now: datetime) -> dict[str, list[int]]:
    """Return the number of waiting PodGroups of each queue by age."""
    found: dict[str, list[int]] = {}
    for podgroup in waiting.items:
        if podgroup.created_at is None:
            continue
        age = (now - podgroup.created_at).total_seconds()
        group = sum(age >= limit for limit, _ in AGES)
        counts = found.setdefault(podgroup.queue, [0] * (len(AGES) + 1))
        counts[group] += 1
    return dict(sorted(found.items()))


async def watch_queues(page: Page) -> ASGIApp:
    """Stream that queues have changed."""
    return page.stream(rest_path("watch", "queues"), {}, ChangeFilter())


ROUTES = (
    ("GET", "/queues", show_queues),
    ("GET", "/queues/{name}", show_queue),
    ("GET", "/live/queues", watch_queues),
)
