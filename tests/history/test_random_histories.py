"""Random histories of jobs, pods and recorders: the record is the truth, or marked incomplete."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.history_world import RESOURCES, HistoryWorld
from support.stateful import stateful_settings

from batholith.store.history import HistoryStore
from batholith.store.usage import UsageQuery, UsageStore

INDEX = st.integers(0, 5)


class RecordedHistories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = HistoryWorld()
        self.may_compact = False

    @initialize(may_compact=st.booleans())
    def start(self, may_compact: bool) -> None:
        """A recorder of an empty cluster; whatever it misses later is its fault."""
        self.may_compact = may_compact
        self.world.start_recorder()
        for resource in RESOURCES:
            self.world.deliver(0, resource, 1)
        self.advance(2)

    @rule(seconds=st.integers(1, 5000))
    def advance(self, seconds: int) -> None:
        self.world.run(self.world.clock.advance(seconds))

    @rule()
    def create_job(self) -> None:
        self.world.create_job()

    @precondition(lambda self: self.world.objects[RESOURCES[0]])
    @rule(index=INDEX, cpu=st.integers(1, 3), started=st.booleans())
    def create_pod(self, index: int, cpu: int, started: bool) -> None:
        self.world.create_pod(self._pick(0, index), cpu)
        if started:
            self.world.start_pod(list(self.world.pods)[-1])

    @precondition(lambda self: self.world.objects[RESOURCES[1]])
    @rule(
        index=INDEX,
        change=st.sampled_from(
            ["start_pod", "finish_pod", "finish_pod", "delete_pod", "touch_pod"]
        ),
        pace=st.sampled_from([0, 1, 100]),
    )
    def change_pod(self, index: int, change: str, pace: int) -> None:
        self.advance(7)
        getattr(self.world, change)(self._pick(1, index))
        if pace:
            self.world.deliver(0, RESOURCES[1], pace)

    @precondition(lambda self: self.world.objects[RESOURCES[0]])
    @rule(index=INDEX, phase=st.sampled_from(["Running", "Restarting", "Completed"]))
    def change_job(self, index: int, phase: str) -> None:
        uid = self._pick(0, index)
        if self.world.phases[uid][-1] != "Completed":
            self.advance(1)
            self.world.set_phase(uid, phase)

    @precondition(lambda self: self.world.objects[RESOURCES[0]])
    @rule(index=INDEX)
    def delete_job(self, index: int) -> None:
        self.world.delete_job(self._pick(0, index))

    @rule(
        number=st.integers(0, 1),
        resource=st.sampled_from(RESOURCES),
        count=st.sampled_from([1, 2, 5, 100]),
    )
    def deliver(self, number: int, resource: str, count: int) -> None:
        self.world.deliver(number, resource, count)

    @rule()
    def start_another_recorder(self) -> None:
        """The earlier one goes on until it writes."""
        self.world.start_recorder()

    @rule(number=st.integers(0, 1))
    def kill_recorder(self, number: int) -> None:
        if len(self.world.recorders) > number:
            del self.world.recorders[number]

    @rule(faults=st.lists(st.sampled_from(["failed", "lost", "twice", ""]), max_size=4))
    def break_store(self, faults: list[str]) -> None:
        self.world.database.faults = faults

    @precondition(lambda self: self.may_compact)
    @rule()
    def compact(self) -> None:
        self.world.compact()

    def _pick(self, resource: int, index: int) -> str:
        names = list(self.world.objects[RESOURCES[resource]])
        return names[index % len(names)]

    def teardown(self) -> None:
        try:
            self.world.settle()
            self._check()
        finally:
            self.world.close()

    def _check(self) -> None:
        world = self.world
        store = HistoryStore(world.database)  # type: ignore[arg-type]  # its methods alone
        now = world.clock.now()
        for uid, phases in world.phases.items():
            details = world.run(store.details(uid, now=now))
            if details is None:
                assert world.compactions, f"{uid} is not recorded"
                continue
            if not details.job.complete:
                assert world.compactions, f"{uid}: {details.job.incomplete_reason}"
                continue
            expected = world.resource_seconds(uid)
            assert details.resource_seconds == pytest.approx(expected), uid
            assert [each.phase for each in details.phases] == phases
            exists = uid in world.objects[RESOURCES[0]]
            assert (details.job.deleted_at is None) == exists
        counted, steps = world.counted()
        for total in steps.values():
            assert total == pytest.approx(counted)
        self._check_usage()

    def _check_usage(self) -> None:
        """The series adds up to the usage of the jobs, of running pods until now, too."""
        world = self.world
        now = world.clock.now()
        usage = UsageStore(world.database)  # type: ignore[arg-type]  # likewise
        store = HistoryStore(world.database)  # type: ignore[arg-type]  # likewise
        start = now.replace(year=now.year - 1, month=1, day=1, hour=0, minute=0, second=0)
        end = start.replace(year=now.year + 1)
        query = UsageQuery(by="queue", start=start, end=end, step=3600)
        in_series = sum(
            amount
            for series in world.run(usage.series(query, now=now))
            for point in series.points
            for amount in point.resource_seconds.values()
        )
        details = [world.run(store.details(uid, now=now)) for uid in world.phases]
        by_job = sum(sum(each.resource_seconds.values()) for each in details if each is not None)
        assert in_series == pytest.approx(by_job)


RecordedHistories.TestCase.settings = stateful_settings(steps=40, histories=60)
TestRecordedHistories = RecordedHistories.TestCase
