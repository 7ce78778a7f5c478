"""Jobs of one kind in the orders and groups that lists need, kept by the events of an informer.

A page costs no sorting: each order is a sorted list that a change updates by bisection, and filters
have groups of keys, those by label for the labels that were asked for last. Only comparisons of
numbers in labels examine jobs one by one.
"""

import asyncio
import heapq
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from operator import and_, sub
from typing import Any

import msgspec

from ...model.selectors import Operator, Requirement
from ...wire.jobs import JobSummary
from ..http.paging import MAX_KEY, Position
from .selection import JobFilter, TimeRange
from .views import CachedObject

ENCODED_SIZE = 20_000
"""Maximum number of encoded summaries that are kept."""

LABELS = 16
"""Maximum number of labels that jobs are grouped by."""

YIELD_EVERY = 5_000
"""Jobs that a filter examines before other tasks run."""


class SortField(StrEnum):
    """What jobs are sorted by; jobs of the same value by namespace and name."""

    NAME = "name"
    CREATED = "created"
    PHASE = "phase"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """A page of jobs to select."""

    filter: JobFilter
    field: SortField = SortField.NAME
    descending: bool = False
    limit: int
    after: Position | None = None
    """Position of the last item of the page before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """The jobs of a page."""

    keys: Sequence[str]
    total: int
    """Number of jobs that match, on all pages."""
    last: Position | None
    """Position of the last item; ``None`` if no page follows."""


class _Row(msgspec.Struct, frozen=True):
    """What filters and orders need of a job."""

    job: CachedObject
    labels: dict[str, str]
    namespace: str
    name: str
    created: str
    phase: str
    queue: str
    user: str

    def value(self, field: str) -> str:
        value: str = getattr(self, field)
        return value[:MAX_KEY]

    def position(self, field: str) -> Position:
        return (self.value(field), self.namespace, self.name)


_EMPTY: frozenset[str] = frozenset()
_COMPARISONS = frozenset((Operator.GREATER, Operator.LESS))
_GROUPED = ("namespace", "phase", "queue", "user")


class JobIndex:
    """Jobs of one kind; see the module."""

    def __init__(self, summarize: Callable[[Any], JobSummary]) -> None:
        """Create an empty index; *summarize* is that of the kind."""
        self._summarize = summarize
        self._rows: dict[str, _Row] = {}
        self._orders: dict[str, list[Position]] = {field: [] for field in SortField}
        self._groups: dict[str, dict[str, set[str]]] = {field: {} for field in _GROUPED}
        self._label_groups: dict[str, dict[str, set[str]]] = {}
        """For each label that filters have asked for last, the keys by value; the oldest label is
        first."""
        self._encoded: dict[str, bytes] = {}

    def __len__(self) -> int:
        """Number of jobs."""
        return len(self._rows)

    def on_event(self, old: CachedObject | None, new: CachedObject | None) -> None:
        """Apply a change; the event handler of the informer."""
        job = new if new is not None else old
        if job is None:
            return
        key = job.metadata.key
        self._encoded.pop(key, None)
        before = self._rows.pop(key, None)
        row = None if new is None else _row(new, self._summarize(new))
        if row is not None:
            self._rows[key] = row
        self._update_orders(before, row)
        self._update_groups(key, before, row)

    def _update_orders(self, old: _Row | None, new: _Row | None) -> None:
        for field, order in self._orders.items():
            before = None if old is None else old.position(field)
            after = None if new is None else new.position(field)
            if before == after:
                continue
            if before is not None:
                del order[bisect_left(order, before)]
            if after is not None:
                insort(order, after)

    def _update_groups(self, key: str, old: _Row | None, new: _Row | None) -> None:
        for field, groups in self._groups.items():
            before = None if old is None else getattr(old, field)
            after = None if new is None else getattr(new, field)
            if before != after:
                _regroup(groups, key, before, after)
        for label, groups in self._label_groups.items():
            before = None if old is None else old.labels.get(label)
            after = None if new is None else new.labels.get(label)
            if before != after:
                _regroup(groups, key, before, after)

    def _groups_of_label(self, label: str) -> dict[str, set[str]]:
        """Return the keys of the jobs that have a label, by the value of the label."""
        groups = self._label_groups.pop(label, None)
        if groups is None:
            groups = {}
            for key, row in self._rows.items():
                value = row.labels.get(label)
                if value is not None:
                    groups.setdefault(value, set()).add(key)
            if len(self._label_groups) >= LABELS:
                del self._label_groups[next(iter(self._label_groups))]
        self._label_groups[label] = groups
        return groups

    def phases_in_queue(self, queue: str) -> Mapping[str, int]:
        """Return the number of jobs of *queue* by phase."""
        return Counter(self._rows[key].phase for key in self._groups["queue"].get(queue, ()))

    def summary(self, key: str) -> JobSummary:
        """Return the summary of a job of a page. The caller must not have awaited anything since it
        got the page."""
        return self._summarize(self._rows[key].job)

    def encoded(self, key: str) -> bytes:
        """Return the summary as JSON, under the same condition."""
        found = self._encoded.get(key)
        if found is None:
            if len(self._encoded) >= ENCODED_SIZE:
                self._encoded.clear()
            found = self._encoded[key] = msgspec.json.encode(self.summary(key))
        return found

    async def select(self, request: PageRequest) -> JobPage:
        """Return a page of the jobs that match. Its jobs are in the index until the caller awaits
        something."""
        wanted = request.filter
        if wanted.labels.nothing:
            return JobPage(keys=(), total=0, last=None)
        group = self._wanted_keys(wanted)
        comparisons = [each for each in wanted.labels.requirements if each.operator in _COMPARISONS]
        if not comparisons:
            return self._select_group(request, group)
        keys = self._rows if group is None else group
        matching = await self._matching(keys, comparisons, request.field)
        page = self._page(request, self._smallest(matching, request), total=len(matching))
        # What has changed while other tasks ran may match no longer.
        current = [key for key in page.keys if wanted.matches(self.summary(key))]
        return replace(page, keys=current)

    def _wanted_keys(self, wanted: JobFilter) -> AbstractSet[str] | None:
        """Return the keys that meet all conditions with groups; ``None`` if there are none."""
        included = sorted(self._included(wanted), key=len)
        excluded = list(self._excluded(wanted))
        if not (included or excluded):
            return None
        keys = reduce(and_, included) if included else self._rows.keys()
        return reduce(sub, excluded, keys)

    def _included(self, wanted: JobFilter) -> Iterator[AbstractSet[str]]:
        """Yield sets of keys; a job must be in all of them."""
        if wanted.namespace:
            yield self._groups["namespace"].get(wanted.namespace, _EMPTY)
        if wanted.phases:
            yield _union(self._groups["phase"], wanted.phases)
        if wanted.queue is not None:
            yield self._groups["queue"].get(wanted.queue, _EMPTY)
        if wanted.user is not None:
            yield self._groups["user"].get(wanted.user, _EMPTY)
        if wanted.search:
            rows = self._rows.items()
            yield frozenset(key for key, row in rows if wanted.search in row.name)
        if not wanted.created.is_unlimited:
            yield self._created_in(wanted.created)
        for each in wanted.labels.requirements:
            if each.operator is Operator.IN:
                yield _union(self._groups_of_label(each.key), each.values)
            elif each.operator is Operator.EXISTS:
                yield _union(self._groups_of_label(each.key))

    def _excluded(self, wanted: JobFilter) -> Iterator[AbstractSet[str]]:
        """Yield sets of keys; a job must be in none of them."""
        for each in wanted.labels.requirements:
            if each.operator is Operator.NOT_IN:
                yield _union(self._groups_of_label(each.key), each.values)
            elif each.operator is Operator.DOES_NOT_EXIST:
                yield _union(self._groups_of_label(each.key))

    def _created_in(self, created: TimeRange) -> AbstractSet[str]:
        order = self._orders[SortField.CREATED]
        first = bisect_left(order, (created.first or "0",))
        end = bisect_left(order, (created.end,)) if created.end else len(order)
        return frozenset(map(_key, order[first:end]))

    def _select_group(self, request: PageRequest, group: AbstractSet[str] | None) -> JobPage:
        """Select from one group, or from all jobs."""
        if group is None:
            found = self._walk(request, None)
            return self._page(request, found, total=len(self._rows))
        if len(group) * 8 > len(self._rows):
            found = self._walk(request, group)
        else:
            rows = self._rows
            positions = (rows[key].position(request.field) for key in group)
            found = self._smallest(positions, request)
        return self._page(request, found, total=len(group))

    def _walk(self, request: PageRequest, group: AbstractSet[str] | None) -> list[Position]:
        """Return the positions of a page and one more, in order."""
        order = self._orders[request.field]
        indexes: Iterable[int]
        if request.descending:
            end = len(order) if request.after is None else bisect_left(order, request.after)
            indexes = range(end - 1, -1, -1)
        else:
            first = 0 if request.after is None else bisect_right(order, request.after)
            indexes = range(first, len(order))
        found: list[Position] = []
        for index in indexes:
            position = order[index]
            if group is None or _key(position) in group:
                found.append(position)
                if len(found) > request.limit:
                    break
        return found

    async def _matching(
        self, keys: Collection[str], requirements: Sequence[Requirement], field: str
    ) -> list[Position]:
        """Return the positions of the jobs of *keys* whose labels meet *requirements*."""
        found = []
        for number, key in enumerate(tuple(keys)):
            if number % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)
            row = self._rows.get(key)
            if row is not None and all(each.matches(row.labels) for each in requirements):
                found.append(row.position(field))
        return found

    def _smallest(self, positions: Iterable[Position], request: PageRequest) -> list[Position]:
        """Return the positions of a page and one more, in order."""
        after, count = request.after, request.limit + 1
        if request.descending:
            left = (each for each in positions if after is None or each < after)
            return heapq.nlargest(count, left)
        return heapq.nsmallest(count, (each for each in positions if after is None or each > after))

    def _page(self, request: PageRequest, found: list[Position], *, total: int) -> JobPage:
        shown = found[: request.limit]
        keys = [key for key in map(_key, shown) if key in self._rows]
        return JobPage(
            keys=keys, total=total, last=shown[-1] if len(found) > request.limit else None
        )

    def validate(self) -> None:
        """Check that orders and groups agree with the rows; for tests.

        Raises:
            AssertionError: they do not.
        """
        for field, order in self._orders.items():
            if order != sorted(row.position(field) for row in self._rows.values()):
                raise AssertionError(f"order {field} does not match the rows")
        for field, groups in self._groups.items():
            expected: dict[str, set[str]] = {}
            for key, row in self._rows.items():
                expected.setdefault(getattr(row, field), set()).add(key)
            if groups != expected:
                raise AssertionError(f"groups of {field} do not match the rows")
        for label, groups in tuple(self._label_groups.items()):
            del self._label_groups[label]
            if groups != self._groups_of_label(label):
                raise AssertionError(f"groups of the label {label} do not match the rows")


def _row(job: CachedObject, summary: JobSummary) -> _Row:
    return _Row(
        job=job,
        labels=summary.labels,
        namespace=summary.namespace,
        name=summary.name,
        created=job.metadata.creation_timestamp or "",
        phase=summary.phase,
        queue=summary.queue,
        user=summary.user,
    )


def _regroup(groups: dict[str, set[str]], key: str, before: str | None, after: str | None) -> None:
    """Move *key* from one group to another."""
    if before is not None:
        group = groups[before]
        group.remove(key)
        if not group:
            del groups[before]
    if after is not None:
        groups.setdefault(after, set()).add(key)


def _union(
    groups: Mapping[str, set[str]], values: AbstractSet[str] | None = None
) -> AbstractSet[str]:
    """Return the keys in the groups of *values*, or in all."""
    found = [groups[each] for each in (groups if values is None else values) if each in groups]
    return found[0] if len(found) == 1 else frozenset().union(*found)


def _key(position: Position) -> str:
    return f"{position[1]}/{position[2]}"
