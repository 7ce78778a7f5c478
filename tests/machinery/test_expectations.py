"""Expectations: no duplicate child, and no key that is blocked for ever.

INV-EX-4 and INV-EX-6 also concern the callers: see the tests of the job controller.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.examples import examples

from batholith.machinery.expectations import TTL, Expectations
from batholith.machinery.testing import FakeClock

DESIRED = 4


class ControllerMachine(RuleBasedStateMachine):
    """INV-EX-1 and INV-EX-2: a controller of four children whose informer lags arbitrarily."""

    @initialize()
    def start(self) -> None:
        self.clock = FakeClock()
        self.expected = Expectations(self.clock)
        self.children: set[str] = set()
        self.cache: set[str] = set()
        self.unobserved: list[str] = []
        self.created_count = 0
        self.timed_out = 0

    @rule(fates=st.lists(st.sampled_from(["ok", "refused", "timeout", "lost"]), min_size=DESIRED))
    def reconcile(self, fates: list[str]) -> None:
        if self.expected.pending("job"):
            return
        missing = DESIRED - len(self.cache)
        names = [f"child-{self.created_count + number}" for number in range(missing)]
        self.created_count += missing
        self.expected.expect("job", names)
        for name, fate in zip(names, fates, strict=False):
            if fate == "refused":
                self.expected.observe("job", name)
            elif fate == "lost":
                self.timed_out += 1  # the call never arrived, and we cannot know
            else:
                self.children.add(name)
                self.unobserved.append(name)
                self.timed_out += fate == "timeout"

    @rule(pick=st.integers(0, 100))
    def one_ends(self, pick: int) -> None:
        if seen := sorted(self.cache):
            self.children.discard(seen[pick % len(seen)])
            self.cache.discard(seen[pick % len(seen)])

    @rule(again=st.booleans())
    def notify(self, again: bool) -> None:
        if self.unobserved:
            name = self.unobserved[0] if again else self.unobserved.pop(0)
            self.cache.add(name)
            self.expected.observe("job", name)

    @rule()
    def wait(self) -> None:
        self.clock.tick(TTL + 1)
        while self.unobserved:  # a cache lags, but not for minutes
            self.notify(again=False)

    @invariant()
    def never_too_many(self) -> None:
        assert len(self.children) <= DESIRED + self.timed_out

    def teardown(self) -> None:
        if hasattr(self, "cache") and self.timed_out == 0:
            while self.unobserved:
                self.notify(again=False)
            assert not self.expected.pending("job")
            assert len(self.expected) == 0


TestControllerMachine = ControllerMachine.TestCase
TestControllerMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)


def test_inv_ex_3_lost_notification_blocks_for_five_minutes() -> None:
    """INV-EX-3."""
    clock = FakeClock()
    expected = Expectations(clock)
    expected.expect("job", ["a"])
    clock.tick(299.5)
    assert expected.pending("job") == {"a"}
    clock.tick(0.5)
    assert not expected.pending("job")


def test_inv_ex_3_each_child_has_its_own_five_minutes() -> None:
    clock = FakeClock()
    expected = Expectations(clock)
    expected.expect("job", ["old"])
    clock.tick(200)
    expected.expect("job", ["new"])
    assert expected.pending("job") == {"old", "new"}
    clock.tick(101)
    assert expected.pending("job") == {"new"}


def test_inv_ex_2_created_children_are_pending_until_they_are_observed() -> None:
    expected = Expectations(FakeClock())
    expected.expect("job", ["a", "b", "c"])
    assert expected.set_created("job", "a", "uid-a")
    assert expected.pending("job") == {"a", "b", "c"}
    assert expected.created("job") == {"a": "uid-a"}
    assert expected.observe("job", "a") == "uid-a"
    assert expected.observe("job", "b") == ""
    assert expected.pending("job") == {"c"}
    expected.observe("job", "c")
    assert "job" not in expected and len(expected) == 0


def test_response_after_the_informer_records_nothing() -> None:
    expected = Expectations(FakeClock())
    expected.expect("job", ["a"])
    expected.observe("job", "a")
    assert not expected.set_created("job", "a", "uid-a")
    assert "job" not in expected


def test_inv_ex_3_created_child_is_kept_until_its_expiry_is_reported() -> None:
    """The caller has stored the created object, and must remove it."""
    clock = FakeClock()
    expected = Expectations(clock)
    expected.expect("job", ["a", "b"])
    expected.set_created("job", "a", "uid-a")
    assert expected.expire("job") == []
    clock.tick(TTL + 1)
    expected.expect("job", ["c"])
    assert expected.pending("job") == {"c"}
    assert expected.expire("job") == ["uid-a"]
    assert expected.expire("job") == []
    assert expected.created("job") == {}
    assert expected.pending("job") == {"c"}


def test_inv_ex_4_failed_and_skipped_calls_are_not_pending() -> None:
    """k creations of which f fail and s are skipped: k - f - s are pending."""
    expected = Expectations(FakeClock())
    calls = [f"child-{number}" for number in range(10)]
    failed, skipped = calls[:3], calls[3:5]
    expected.expect("job", [call for call in calls if call not in skipped])
    for call in failed:
        expected.observe("job", call)
    assert len(expected.pending("job")) == 10 - 3 - 2


def test_inv_ex_6_child_that_is_observed_repeatedly_counts_once() -> None:
    expected = Expectations(FakeClock())
    expected.expect("job", ["a", "b"])
    assert expected.observe("job", "a") == ""
    assert expected.observe("job", "a") is None
    assert expected.pending("job") == {"b"}


def test_inv_ex_5_an_absent_record_stays_absent() -> None:
    """INV-EX-5."""
    expected = Expectations(FakeClock())
    assert expected.observe("job", "a") is None
    assert not expected.set_created("job", "a", "uid")
    assert not expected.pending("job") and not expected.expire("job")
    assert len(expected) == 0


def test_deleted_key_expects_nothing() -> None:
    expected = Expectations(FakeClock())
    expected.expect("job", ["a"])
    expected.delete("job")
    assert not expected.pending("job")


def test_expecting_no_child_leaves_no_record() -> None:
    expected = Expectations(FakeClock())
    expected.expect("job", [])
    assert "job" not in expected and len(expected) == 0
