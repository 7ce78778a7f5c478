"""Expectations: no child twice, and no key held up for ever."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from batholith.machinery.expectations import (
    TTL,
    CounterExpectations,
    ReadYourWrites,
    UidExpectations,
)
from batholith.machinery.testing import FakeClock

WANTED = 4


@dataclass
class Child:
    name: str
    uid: str


class ControllerMachine(RuleBasedStateMachine):
    """INV-EX-1 and INV-EX-2: a controller of four children whose cache lags as it likes."""

    @initialize()
    def start(self) -> None:
        self.clock = FakeClock()
        self.expected = UidExpectations(self.clock)
        self.live: dict[str, Child] = {}
        self.cache: dict[str, Child] = {}
        self.unseen: list[tuple[str, Child]] = []
        self.made = 0
        self.timed_out = 0

    @rule(fates=st.lists(st.sampled_from(["ok", "refused", "timeout", "lost"]), min_size=WANTED))
    def reconcile(self, fates: list[str]) -> None:
        if not self.expected.satisfied("job"):
            return
        missing = WANTED - len(self.cache)
        names = [f"child-{self.made + number}" for number in range(missing)]
        self.made += max(0, missing)
        self.expected.expect_creations("job", names)
        for name, fate in zip(names, fates, strict=False):
            if fate == "refused":
                self.expected.creation_observed("job", name)
            elif fate == "lost":
                self.timed_out += 1  # the call never arrived, and we cannot know
            else:
                child = Child(name, f"uid-{name}")
                self.live[name] = child
                self.unseen.append(("add", child))
                self.timed_out += fate == "timeout"

    @rule(pick=st.integers(0, 100))
    def delete_one(self, pick: int) -> None:
        if self.cache and self.expected.satisfied("job"):
            name = sorted(self.cache)[pick % len(self.cache)]
            if name in self.live:
                child = self.live.pop(name)
                self.expected.expect_deletions("job", [child.uid])
                self.unseen += [("terminating", child), ("gone", child)]

    @rule()
    def notify(self) -> None:
        if not self.unseen:
            return
        what, child = self.unseen.pop(0)
        if what == "add":
            self.cache[child.name] = child
            self.expected.creation_observed("job", child.name)
        else:  # seen twice: INV-EX-6
            self.cache.pop(child.name, None)
            self.expected.deletion_observed("job", child.uid)

    @rule()
    def wait(self) -> None:
        self.clock.tick(TTL + 1)
        while self.unseen:  # a cache lags, but not for minutes
            self.notify()

    @invariant()
    def never_too_many(self) -> None:
        assert len(self.live) <= WANTED + self.timed_out

    def teardown(self) -> None:
        if hasattr(self, "live") and self.timed_out == 0:
            while self.unseen:
                self.notify()
            assert self.expected.satisfied("job")
            assert len(self.expected) == 0


TestControllerMachine = ControllerMachine.TestCase
TestControllerMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_inv_ex_2_all_calls_and_notifications_leave_nothing_open() -> None:
    expected = CounterExpectations(FakeClock())
    expected.set("job", adds=3)
    for _ in range(3):
        assert not expected.satisfied("job")
        expected.creation_observed("job")
    assert expected.satisfied("job")
    assert expected.pending("job") <= (0, 0)


def test_inv_ex_3_a_lost_notification_holds_up_for_five_minutes() -> None:
    clock = FakeClock()
    counters, uids = CounterExpectations(clock), UidExpectations(clock)
    counters.set("job", adds=1)
    uids.expect_creations("job", ["a"])
    clock.tick(100)
    counters.raise_by("job", adds=1)
    clock.tick(200)
    assert not counters.satisfied("job")
    assert not uids.satisfied("job")
    assert uids.expires_in("job") == 0
    clock.tick(0.5)
    assert counters.satisfied("job")
    assert uids.satisfied("job")
    assert uids.expires_in("job") is None


def test_inv_ex_3_each_child_has_its_own_five_minutes() -> None:
    clock = FakeClock()
    expected = UidExpectations(clock)
    expected.expect_creations("job", ["old"])
    clock.tick(200)
    expected.expect_creations("job", ["new"])
    assert expected.awaited_creations("job") == {"old", "new"}
    assert expected.expires_in("job") == 300
    clock.tick(101)
    assert expected.awaited_creations("job") == {"new"}


@given(total=st.integers(0, 20), data=st.data())
def test_inv_ex_4_failed_and_skipped_calls_are_taken_off(total: int, data: st.DataObject) -> None:
    failed = data.draw(st.integers(0, total))
    skipped = data.draw(st.integers(0, total - failed))
    expected = CounterExpectations(FakeClock())
    expected.set("job", adds=total)
    for _ in range(failed):
        expected.creation_observed("job")
    expected.lower_by("job", adds=skipped)
    assert expected.pending("job") == (total - failed - skipped, 0)


def test_inv_ex_5_an_absent_record_stays_absent() -> None:
    counters, uids = CounterExpectations(FakeClock()), UidExpectations(FakeClock())
    counters.raise_by("job", adds=3)
    counters.lower_by("job", dels=1)
    uids.creation_observed("job", "a")
    uids.deletion_observed("job", "b")
    assert (len(counters), len(uids)) == (0, 0)
    assert counters.satisfied("job")


def test_inv_ex_6_a_pod_seen_to_go_twice_counts_once() -> None:
    expected = UidExpectations(FakeClock())
    expected.expect_deletions("job", ["u1", "u2"])
    expected.deletion_observed("job", "u1")
    expected.deletion_observed("job", "u1")
    assert not expected.satisfied("job")
    assert expected.awaited_deletions("job") == {"u2"}
    expected.deletion_observed("job", "u2")
    assert expected.satisfied("job")


def test_a_key_that_is_gone_expects_nothing() -> None:
    counters, uids = CounterExpectations(FakeClock()), UidExpectations(FakeClock())
    counters.set("job", dels=2)
    counters.deletion_observed("job")
    uids.expect_deletions("job", ["u1"])
    counters.delete("job")
    uids.delete("job")
    assert counters.satisfied("job")
    assert uids.satisfied("job")


def test_more_than_expected_is_fine() -> None:
    counters = CounterExpectations(FakeClock())
    counters.set("job", adds=1)
    counters.creation_observed("job")
    counters.creation_observed("job")
    assert counters.satisfied("job")


def test_a_key_waits_until_its_own_writes_are_in_the_cache() -> None:
    guard = ReadYourWrites()
    assert guard.caught_up("job", "pods", "1")
    guard.wrote("job", "jobs", "17")
    guard.wrote("job", "jobs", "15")
    guard.wrote("job", "pods", "18")
    assert not guard.caught_up("job", "jobs", "16")
    assert not guard.caught_up("job", "jobs", "")
    assert guard.caught_up("job", "jobs", "17")
    assert guard.caught_up("job", "jobs", "3")
    assert not guard.caught_up("job", "pods", "9")
    guard.delete("job")
    assert guard.caught_up("job", "pods", "9")
    assert len(guard) == 0
