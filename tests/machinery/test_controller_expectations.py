"""Expectations of creations by name and deletions by uid."""

import logging

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.examples import examples

from batholith.machinery.expectations import (
    TTL,
    ControllerExpectations,
)
from batholith.machinery.testing import FakeClock

MAX_DESIRED = 5
FATES = st.lists(
    st.sampled_from(["ok", "rejected", "timeout", "lost"]),
    min_size=MAX_DESIRED,
    max_size=MAX_DESIRED,
)


class ReplicaMachine(RuleBasedStateMachine):
    """INV-EX-1, INV-EX-2, INV-EX-5: replicas scaled up and down behind an informer that lags."""

    @initialize()
    def start(self) -> None:
        self.clock = FakeClock()
        self.expected = ControllerExpectations(self.clock)
        self.children: set[str] = set()
        self.cache: set[str] = set()
        self.events: list[tuple[str, str]] = []
        self.desired = self.peak = MAX_DESIRED
        self.created_count = 0
        self.uncertain = 0
        """Creations whose result the controller does not know."""

    @rule(desired=st.integers(0, MAX_DESIRED))
    def scale(self, desired: int) -> None:
        self.desired = desired

    @rule(fates=FATES)
    def reconcile(self, fates: list[str]) -> None:
        if not self.expected.satisfied("web"):
            return
        missing = self.desired - len(self.cache)
        if missing > 0:
            self.create(missing, fates)
        elif missing < 0:
            self.delete(sorted(self.cache)[:-missing], fates)

    def create(self, count: int, fates: list[str]) -> None:
        names = [f"web-{self.created_count + number}" for number in range(count)]
        self.created_count += count
        self.expected.expect_creations("web", names)
        for name, fate in zip(names, fates, strict=False):
            if fate == "rejected":
                self.expected.lower_expectations("web", creations=[name])
            elif fate == "lost":
                self.uncertain += 1
            else:
                self.uncertain += fate == "timeout"
                self.children.add(name)
                self.events.append(("added", name))

    def delete(self, names: list[str], fates: list[str]) -> None:
        self.expected.expect_deletions("web", names)
        for name, fate in zip(names, fates, strict=False):
            if fate == "rejected" or name not in self.children:
                self.expected.lower_expectations("web", deletions=[name])
            elif fate != "lost":
                self.children.discard(name)
                self.events += [("terminating", name), ("deleted", name)]

    @rule()
    def another_client_deletes_a_child(self) -> None:
        if self.children:
            name = min(self.children)
            self.children.discard(name)
            self.events += [("terminating", name), ("deleted", name)]

    @rule()
    def notify(self) -> None:
        if self.events:
            self.deliver(*self.events.pop(0))

    def deliver(self, event: str, name: str) -> None:
        if event == "added":
            self.cache.add(name)
            self.expected.creation_observed("web", name)
        else:
            self.cache.discard(name)
            self.expected.deletion_observed("web", name)

    @rule()
    def wait(self) -> None:
        while self.events:  # an informer lags, but not for minutes
            self.notify()
        self.clock.tick(TTL + 1)

    @invariant()
    def no_child_in_excess(self) -> None:
        assert len(self.children) <= self.peak + self.uncertain, "INV-EX-1"

    @invariant()
    def no_lower_creates_a_record(self) -> None:
        self.expected.lower_expectations("other", creations=["a"], deletions=["b"])
        self.expected.raise_expectations("other", creations=["a"], deletions=["b"])
        assert "other" not in self.expected, "INV-EX-5"
        assert self.expected.satisfied("other")

    def teardown(self) -> None:
        if hasattr(self, "events"):
            while self.events:
                self.notify()
            if not self.uncertain:
                assert not self.expected.pending_creations("web"), "INV-EX-2"
            self.clock.tick(TTL + 1)
            assert self.expected.satisfied("web"), "INV-EX-3"


TestReplicaMachine = ReplicaMachine.TestCase
TestReplicaMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def expected(clock: FakeClock) -> ControllerExpectations:
    return ControllerExpectations(clock)


def test_key_without_record_is_satisfied(expected: ControllerExpectations) -> None:
    assert expected.satisfied("web")
    assert expected.expires_in("web") is None


def test_key_is_satisfied_once_all_children_are_observed(expected: ControllerExpectations) -> None:
    expected.expect_creations("web", ["a", "b"])
    expected.expect_deletions("web", ["uid-c"])
    assert expected.creation_observed("web", "a")
    assert expected.deletion_observed("web", "uid-c")
    assert not expected.satisfied("web")
    assert expected.pending_creations("web") == {"b"}
    expected.lower_expectations("web", creations=["b"])
    assert expected.satisfied("web")


def test_inv_ex_3_lost_notification_blocks_for_five_minutes(
    expected: ControllerExpectations, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-EX-3."""
    expected.expect_deletions("web", ["uid-a"])
    clock.tick(299.5)
    assert not expected.satisfied("web")
    assert expected.expires_in("web") == 0.5
    clock.tick(0.5)
    with caplog.at_level(logging.WARNING):
        assert expected.satisfied("web")
    assert [record.getMessage() for record in caplog.records] == ["expectations expired"]


def test_inv_ex_4_failed_and_skipped_creations_are_lowered(
    expected: ControllerExpectations,
) -> None:
    """INV-EX-4: of k creations f fail and s are skipped; k - f - s are expected."""
    calls = [f"web-{number}" for number in range(10)]
    expected.set_expectations("web", creations=calls)
    expected.lower_expectations("web", creations=[*calls[3:5], *calls[7:]])
    assert len(expected.pending_creations("web")) == 10 - 2 - 3


def test_inv_ex_6_deletion_is_observed_twice_but_lowers_once(
    expected: ControllerExpectations,
) -> None:
    """INV-EX-6: a deletion timestamp is observed, and then the end of the pod."""
    expected.expect_deletions("web", ["uid-a", "uid-b"])
    assert expected.deletion_observed("web", "uid-a")
    assert not expected.deletion_observed("web", "uid-a")
    assert expected.pending_deletions("web") == {"uid-b"}


def test_set_replaces_the_record(expected: ControllerExpectations) -> None:
    expected.set_expectations("web", creations=["a"], deletions=["uid-b"])
    expected.set_expectations("web", creations=["c"])
    assert expected.pending_creations("web") == {"c"}
    assert not expected.pending_deletions("web")


def test_raise_adds_to_an_empty_record_until_it_is_deleted(
    expected: ControllerExpectations,
) -> None:
    expected.set_expectations("web")
    assert expected.satisfied("web") and "web" in expected
    expected.raise_expectations("web", creations=["a"])
    expected.creation_observed("web", "a")
    expected.raise_expectations("web", deletions=["uid-b"])
    assert not expected.satisfied("web")
    expected.delete("web")
    assert expected.satisfied("web")
    assert len(expected) == 0
    assert not expected.deletion_observed("web", "uid-b")


def test_expectations_that_expired_do_not_shorten_later_ones(
    expected: ControllerExpectations, clock: FakeClock
) -> None:
    expected.expect_creations("web", ["a"])
    clock.tick(TTL + 1)
    assert expected.satisfied("web")
    expected.expect_creations("web", ["b"])
    clock.tick(TTL - 1)
    assert not expected.satisfied("web")
