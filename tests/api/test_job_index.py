"""Lists of jobs: orders, groups, and pages while jobs are added, changed and removed."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from batholith.api.http.paging import Position, decode_cursor, encode_cursor
from batholith.api.jobs.index import JobIndex, JobPage, PageRequest, SortField
from batholith.api.jobs.kinds import VOLCANO
from batholith.api.jobs.selection import JobFilter, TimeRange
from batholith.api.jobs.summaries import JobSummary
from batholith.api.jobs.views import CachedJob, CachedJobSpec
from batholith.api.problems import ProblemError
from batholith.model.job import JobState, JobStatus
from batholith.model.meta import ObjectMeta
from batholith.model.names import SUBMITTED_BY
from batholith.model.selectors import parse_label_selector

START = datetime(2026, 1, 1, tzinfo=UTC)
PHASES = ("Pending", "Running", "Failed")
QUEUES = ("default", "research")


def new_job(
    namespace: str,
    name: str,
    *,
    phase: str = "Pending",
    queue: str = "default",
    user: str = "",
    age: int = 0,
    generation: int = 1,
    **labels: str,
) -> CachedJob:
    created = (START + timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return CachedJob(
        metadata=ObjectMeta(
            namespace=namespace,
            name=name,
            uid=f"{namespace}-{name}-{generation}",
            creation_timestamp=created,
            labels=labels,
            annotations={SUBMITTED_BY: user} if user else {},
        ),
        spec=CachedJobSpec(queue=queue),
        status=JobStatus(state=JobState(phase=phase)),
    )


class World:
    """An index, and the jobs that are in it."""

    def __init__(self) -> None:
        self.index = JobIndex(VOLCANO.summarize)
        self.jobs: dict[str, CachedJob] = {}

    def put(self, job: CachedJob) -> None:
        key = job.metadata.key
        old = self.jobs.get(key)
        if old is not None and old.metadata.uid != job.metadata.uid:
            self.remove(key)
            old = None
        self.jobs[key] = job
        self.index.on_event(old, job)

    def remove(self, key: str) -> None:
        self.index.on_event(self.jobs.pop(key), None)

    def select(self, wanted: JobFilter, **request: Any) -> JobPage:
        try:
            self.index.select(PageRequest(filter=wanted, **request)).send(None)
        except StopIteration as end:  # few jobs: it waits for nothing
            page: JobPage = end.value
            return page
        raise AssertionError("waits")


names = st.sampled_from([f"job-{number}" for number in range(12)])
jobs = st.builds(
    new_job,
    st.sampled_from(("a", "b")),
    names,
    phase=st.sampled_from(PHASES),
    queue=st.sampled_from(QUEUES),
    user=st.sampled_from(("", "ann", "bob")),
    age=st.integers(0, 5),
    generation=st.integers(1, 2),
    tier=st.sampled_from(("x", "y")),
    number=st.sampled_from(("1", "2", "many")),
)
limits = st.none() | st.integers(0, 5).map(lambda age: START + timedelta(seconds=age))
filters = st.builds(
    JobFilter,
    namespace=st.sampled_from(("", "a", "c")),
    phases=st.frozensets(st.sampled_from(PHASES), max_size=2),
    queue=st.sampled_from((None, *QUEUES)),
    user=st.sampled_from((None, "ann")),
    labels=st.sampled_from(
        (
            "",
            "tier=x",
            "tier notin (x)",
            "tier in (x,y),tier!=y",
            "absent=a",
            "!absent,tier",
            "!tier",
            "tier>1",
            "number>1,tier=x",
            "number<3",
        )
    ).map(parse_label_selector),
    created=st.builds(TimeRange.between, limits, limits),
)


def value(summary: JobSummary, field: str) -> str:
    found: str = {"created": summary.created_at or ""}.get(field) or getattr(summary, field)
    return found


@settings(max_examples=examples(200))
@given(
    given_jobs=st.lists(jobs, max_size=30),
    wanted=filters,
    field=st.sampled_from(SortField),
    descending=st.booleans(),
    limit=st.integers(1, 7),
)
def test_pages_are_those_of_a_sorted_and_filtered_list(
    given_jobs: list[CachedJob],
    wanted: JobFilter,
    field: SortField,
    descending: bool,
    limit: int,
) -> None:
    world = World()
    for job in given_jobs:
        world.put(job)
    world.index.validate()
    expected = sorted(
        filter(wanted.matches, map(VOLCANO.summarize, world.jobs.values())),
        key=lambda each: (value(each, field), each.namespace, each.name),
        reverse=descending,
    )
    found: list[str] = []
    after: Position | None = None
    while True:
        page = world.select(wanted, field=field, descending=descending, limit=limit, after=after)
        assert page.total == len(expected)
        assert len(page.keys) <= limit
        found += page.keys
        after = page.last
        if after is None:
            break
        assert len(page.keys) == limit
    assert found == [f"{each.namespace}/{each.name}" for each in expected]


changes = st.one_of(
    jobs.map(lambda job: lambda world: world.put(job)),
    st.integers(0, 100).map(
        lambda number: (
            lambda world: world.jobs and world.remove(sorted(world.jobs)[number % len(world.jobs)])
        )
    ),
)


@settings(max_examples=examples(200))
@given(
    given_jobs=st.lists(jobs, min_size=5, max_size=25),
    field=st.sampled_from(SortField),
    descending=st.booleans(),
    limit=st.integers(1, 4),
    changes=st.lists(st.lists(changes, max_size=4), max_size=30),
)
def test_a_job_that_stays_is_on_exactly_one_page(
    given_jobs: list[CachedJob],
    field: SortField,
    descending: bool,
    limit: int,
    changes: list[list[Callable[[World], None]]],
) -> None:
    """None that exists throughout, with the same sort key, is skipped or returned twice."""
    world = World()
    for job in given_jobs:
        world.put(job)

    def identities() -> set[tuple[str, str]]:
        found = map(VOLCANO.summarize, world.jobs.values())
        return {(each.uid, value(each, field)) for each in found}

    throughout = identities()
    seen: list[str] = []
    after: Position | None = None
    between_pages: Iterator[list[Callable[[World], None]]] = iter(changes)
    while True:
        world.select(JobFilter(labels=parse_label_selector("tier=x")), limit=1)
        page = world.select(
            JobFilter(), field=field, descending=descending, limit=limit, after=after
        )
        seen += [world.jobs[key].metadata.uid for key in page.keys]
        after = page.last
        if after is None:
            break
        for change in next(between_pages, []):
            change(world)
            throughout &= identities()
    world.index.validate()
    for uid, _ in throughout:
        assert seen.count(uid) == 1


def test_jobs_of_one_namespace_among_many_are_found_in_their_group() -> None:
    world = World()
    for number in range(100):
        world.put(new_job("big", f"job-{number:03}"))
    for number in range(3):
        world.put(new_job("small", f"job-{number}"))
    page = world.select(JobFilter(namespace="small"), limit=2)
    assert (list(page.keys), page.total) == (["small/job-0", "small/job-1"], 3)
    page = world.select(JobFilter(namespace="small"), limit=2, after=page.last)
    assert (list(page.keys), page.last) == (["small/job-2"], None)
    assert world.select(JobFilter(namespace="none"), limit=2).total == 0


def test_other_tasks_run_while_a_filter_examines_many_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is deleted concurrently is not on the page."""
    monkeypatch.setattr("batholith.api.jobs.index.YIELD_EVERY", 10)
    world = World()
    for number in range(50):
        world.put(new_job("a", f"job-{number:03}", number="2"))

    async def select() -> JobPage:
        wanted = JobFilter(labels=parse_label_selector("number>1"))
        request = PageRequest(filter=wanted, limit=50)
        selecting = asyncio.create_task(world.index.select(request))
        await asyncio.sleep(0)
        world.remove("a/job-000")
        world.remove("a/job-049")
        return await selecting

    page = asyncio.run(select())
    assert "a/job-000" not in page.keys
    assert "a/job-049" not in page.keys
    assert len(page.keys) == 48


def test_jobs_are_grouped_by_the_labels_asked_for_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batholith.api.jobs.index.LABELS", 2)
    world = World()
    world.put(new_job("a", "job", one="1", two="2", three="3"))
    for label, value, total in (
        ("one", "1", 1), ("two", "2", 1), ("one", "2", 0), ("three", "3", 1), ("two", "2", 1),
    ):  # fmt: skip
        wanted = JobFilter(labels=parse_label_selector(f"{label}={value}"))
        assert world.select(wanted, limit=1).total == total
        world.index.validate()
    world.put(new_job("a", "job", two="3"))
    assert world.select(JobFilter(labels=parse_label_selector("two=2")), limit=1).total == 0
    assert world.select(JobFilter(labels=parse_label_selector("two=3")), limit=1).total == 1


def test_the_encoded_summary_is_that_of_the_current_job() -> None:
    world = World()
    world.put(new_job("a", "job", phase="Pending"))
    assert msgspec.json.decode(world.index.encoded("a/job"))["phase"] == "Pending"
    world.put(new_job("a", "job", phase="Running"))
    assert msgspec.json.decode(world.index.encoded("a/job"))["phase"] == "Running"


@given(position=st.tuples(st.text(), st.text(), st.text()))
def test_a_cursor_returns_its_position(position: Position) -> None:
    assert decode_cursor(encode_cursor("query", position), "query", length=3) == position


@settings(max_examples=examples(200))
@given(text=st.text() | st.binary().map(lambda data: data.hex()))
def test_another_text_is_no_cursor(text: str) -> None:
    with pytest.raises(ProblemError) as caught:
        decode_cursor(text, "query", length=3)
    assert caught.value.status == 422


def test_a_cursor_of_another_query_is_rejected() -> None:
    cursor = encode_cursor("query", ("a", "b", "c"))
    for query, length in (("other", 3), ("query", 2)):
        with pytest.raises(ProblemError) as caught:
            decode_cursor(cursor, query, length=length)
        assert caught.value.status == 422


@pytest.mark.parametrize(
    ("after", "before", "matches"),
    [
        (0, None, True),
        (0.5, None, False),
        (-0.5, 0.5, True),
        (None, 0, False),
        (None, 1, True),
        (-1, 0, False),
    ],
)
def test_the_range_of_creation_times_begins_inclusively(
    after: float | None, before: float | None, matches: bool
) -> None:
    first, end = (
        None if each is None else START + timedelta(seconds=each) for each in (after, before)
    )
    wanted = JobFilter(created=TimeRange.between(first, end))
    assert wanted.matches(VOLCANO.summarize(new_job("a", "job"))) is matches


def test_limits_at_the_end_of_time_are_after_all_jobs() -> None:
    wanted = JobFilter(created=TimeRange.between(datetime.max.replace(tzinfo=UTC), None))
    assert not wanted.matches(VOLCANO.summarize(new_job("a", "job")))
