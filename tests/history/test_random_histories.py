"""Random histories of jobs, pods and recorders: the record is the truth, or marked incomplete."""

from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.history_world import RESOURCES, HistoryWorld
from support.stateful import stateful_settings

from batholith.api.history.stream import LATE_AFTER
from batholith.kube.client.codec import ListScope, ObjectList
from batholith.model.names import PODS
from batholith.store.history import HistoryStore, JobFilter
from batholith.store.job_records import LATE_DELETION
from batholith.store.pod_records import UNKNOWN_END
from batholith.store.usage import UsageQuery, UsageStore

INDEX = st.integers(0, 3)
CHANGES = st.sampled_from(
    [
        *("create_pod", "create_pod", "create_waiting_pod", "start_pod", "finish_pod", "touch_pod"),
        *("delete_pod", "run_job", "restart_job", "complete_job", "delete_job"),
    ]
)
PACES = st.tuples(st.sampled_from([1, 7, 5000]), st.sampled_from([0, 0, 1, 100]))
"""Seconds before a change, and number of events that are received after it."""


INTERRUPTED = (LATE_DELETION, UNKNOWN_END)
"""Why a record may be incomplete although all changes were received: some too late."""


class RecordedHistories(RuleBasedStateMachine):
    def __init__(self, world: HistoryWorld | None = None) -> None:
        super().__init__()
        self.world = world or HistoryWorld()
        self.may_compact = False

    @initialize(may_compact=st.booleans())
    def start(self, may_compact: bool) -> None:
        """A recorder of an empty cluster: it must not miss anything later."""
        self.may_compact = may_compact
        self.world.start_recorder()
        for resource in RESOURCES:
            self.world.deliver(0, resource, 1)
        self.advance(2)

    def advance(self, seconds: int) -> None:
        self.world.run(self.world.clock.advance(seconds))

    @rule(steps=st.lists(st.tuples(CHANGES, INDEX, PACES), min_size=2, max_size=8))
    def change(self, steps: list[tuple[str, int, tuple[int, int]]]) -> None:
        """Change jobs and pods; after each change a recorder may receive some of the events."""
        for change, index, (seconds, count) in steps:
            self.advance(seconds)
            getattr(self, change)(index)
            if count:
                self.world.deliver(0, RESOURCES[index % 2], count)

    def create_pod(self, index: int) -> None:
        if index >= len(self.world.objects[RESOURCES[0]]):
            self.world.create_job()
        self.world.create_pod(self._pick(0, index), index + 1)
        self._start_pod(list(self.world.pods)[-1])

    def create_waiting_pod(self, index: int) -> None:
        if self.world.objects[RESOURCES[0]]:
            self.world.create_pod(self._pick(0, index), index + 1)

    def start_pod(self, index: int) -> None:
        self._change_pod(self._start_pod, index)

    def _start_pod(self, uid: str) -> None:
        """No pod starts once its job has finished."""
        if self.world.phases[self.world.pods[uid].job][-1] != "Completed":
            self.world.start_pod(uid)

    def finish_pod(self, index: int) -> None:
        self._change_pod(self.world.finish_pod, index)

    def delete_pod(self, index: int) -> None:
        self._change_pod(self.world.delete_pod, index)

    def touch_pod(self, index: int) -> None:
        self._change_pod(self.world.touch_pod, index)

    def _change_pod(self, change: Callable[[str], None], index: int) -> None:
        if self.world.objects[RESOURCES[1]]:
            change(self._pick(1, index))

    def run_job(self, index: int) -> None:
        self._set_phase(index, "Running")

    def restart_job(self, index: int) -> None:
        self._set_phase(index, "Restarting")

    def complete_job(self, index: int) -> None:
        self._set_phase(index, "Completed")

    def _set_phase(self, index: int, phase: str) -> None:
        if self.world.objects[RESOURCES[0]]:
            uid = self._pick(0, index)
            if self.world.phases[uid][-1] != "Completed":
                self.world.set_phase(uid, phase)

    def delete_job(self, index: int) -> None:
        if self.world.objects[RESOURCES[0]] and index == 0:
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
        """The earlier one continues until it writes."""
        self.world.start_recorder()

    @rule(number=st.integers(0, 1))
    def kill_recorder(self, number: int) -> None:
        if len(self.world.recorders) > number:
            del self.world.recorders[number]

    @rule(number=st.integers(0, 1), resource=st.sampled_from(RESOURCES))
    def end_watch(self, number: int, resource: str) -> None:
        """The recorder resumes with the next delivery."""
        for recorder in self.world.recorders[number : number + 1]:
            recorder.streams[resource].position = None

    @rule(faults=st.lists(st.sampled_from(["failed", "lost", "twice", ""]), max_size=4))
    def break_store(self, faults: list[str]) -> None:
        self.world.database.faults = faults

    @precondition(lambda self: self.may_compact)
    @rule(resources=st.sampled_from([RESOURCES, RESOURCES[:1], RESOURCES[1:]]))
    def compact(self, resources: Sequence[str] = RESOURCES) -> None:
        self.world.compact(resources)

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
                reason = details.job.incomplete_reason
                assert world.compactions or reason in INTERRUPTED, f"{uid}: {reason}"
                continue
            expected = world.resource_seconds(uid)
            assert details.job.resource_seconds == pytest.approx(expected), uid
            assert details.job.exit_codes == world.exit_codes(uid), uid
            assert [each.phase for each in details.phases] == phases
            exists = uid in world.objects[RESOURCES[0]]
            assert (details.job.deleted_at is None) == exists
            if details.job.deleted_at is not None and uid not in world.delayed_deletions:
                delay = details.job.deleted_at.timestamp() - world.deletions[uid]
                assert 0 <= delay <= LATE_AFTER, uid
        counted, steps = world.counted()
        for total in steps.values():
            assert total == pytest.approx(counted)
        self._check_usage()

    def _check_usage(self) -> None:
        """The series adds up to the usage of the jobs, of running pods until now, too.

        Its intervals are right or marked as incomplete.
        """
        world = self.world
        now = world.clock.now()
        usage = UsageStore(world.database)  # type: ignore[arg-type]  # likewise
        store = HistoryStore(world.database)  # type: ignore[arg-type]  # likewise
        start = now.replace(year=now.year - 1, month=1, day=1, hour=0, minute=0, second=0)
        end = start.replace(year=now.year + 1)
        query = UsageQuery(by="queue", start=start, end=end, step=3600)
        all_series = world.run(usage.series(query, now=now))
        for series in all_series:
            for point in filter(lambda point: point.complete, series.points):
                begin = point.start.timestamp()
                expected = world.queue_seconds(series.name, begin, begin + query.step)
                assert point.resource_seconds == pytest.approx(expected), point.start
        in_series = sum(
            amount
            for series in all_series
            for point in series.points
            for amount in point.resource_seconds.values()
        )
        jobs, _ = world.run(store.jobs(JobFilter(), limit=len(world.phases), now=now))
        by_job = sum(sum(each.resource_seconds.values()) for each in jobs)
        assert in_series == pytest.approx(by_job)


def test_usage_in_a_gap_of_the_pods_is_missing_from_jobs_that_ended_before_the_last_change() -> (
    None
):
    """The change that was received last had happened before the job ended."""
    histories = RecordedHistories()
    histories.start(may_compact=True)
    histories.change([("create_pod", 0, (1, 1)), ("complete_job", 1, (1, 1))])
    histories.compact(RESOURCES[1:])
    histories.change([("create_pod", 0, (1, 0)), ("delete_pod", 0, (1, 0))])
    histories.teardown()


def test_usage_during_a_slow_list_of_the_pods_is_missing_from_jobs_created_meanwhile() -> None:
    """The list has the state at which the server took it, not that when it was requested."""

    class SlowWorld(HistoryWorld):
        async def list_pages(
            self, scope: ListScope, *, size: int = 500
        ) -> AsyncIterator[ObjectList[msgspec.Raw]]:
            if scope.resource == PODS and self.compactions and not self.phases:
                self.create_job()
                self.create_pod("job-0", 1)
                self.start_pod("pod-1")
                await self.clock.advance(5)
                self.delete_pod("pod-1")
                self.set_phase("job-0", "Completed")
            async for page in super().list_pages(scope, size=size):
                yield page

    histories = RecordedHistories(SlowWorld())
    histories.start(may_compact=True)
    histories.world.create_pod("job-9", 1)
    histories.compact()
    histories.deliver(0, RESOURCES[1], 1)
    histories.teardown()


def test_phases_before_the_first_list_of_a_job_may_be_missing() -> None:
    """Its status has only the last time of each phase."""
    histories = RecordedHistories()
    histories.start(may_compact=True)
    changes = ("create_pod", "run_job", "restart_job", "run_job")
    histories.change([(change, 0, (1, 0)) for change in changes])
    histories.deliver(0, RESOURCES[1], 100)
    histories.compact(RESOURCES[:1])
    histories.teardown()


def test_an_interruption_while_a_recorder_catches_up_makes_no_change_current() -> None:
    histories = RecordedHistories()
    histories.start(may_compact=False)
    histories.change([("create_pod", 0, (1, 0))])
    histories.deliver(0, RESOURCES[0], 100)
    histories.end_watch(0, RESOURCES[0])
    histories.change([("run_job", 0, (1, 0)), ("delete_job", 0, (1, 0))])
    histories.deliver(0, RESOURCES[1], 100)
    histories.advance(5000)
    histories.deliver(0, RESOURCES[0], 1)
    histories.end_watch(0, RESOURCES[0])
    histories.deliver(0, RESOURCES[0], 1)
    assert (
        histories.world.resumed_at[RESOURCES[0]] > histories.world.deletions["job-0"] + LATE_AFTER
    )
    histories.teardown()


RecordedHistories.TestCase.settings = stateful_settings(steps=20, histories=60)
TestRecordedHistories = RecordedHistories.TestCase
