"""Expectations: no child twice, and no key held up for ever.

INV-EX-4 and INV-EX-6 are about those who use them: see the tests of the job controller.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from batholith.machinery.expectations import TTL, Expectations
from batholith.machinery.testing import FakeClock

DESIRED = 4


class ControllerMachine(RuleBasedStateMachine):
    """INV-EX-1 and INV-EX-2: a controller of four children whose cache lags as it likes."""

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
TestControllerMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_inv_ex_3_a_lost_notification_holds_up_for_five_minutes() -> None:
    clock = FakeClock()
    expected = Expectations(clock)
    expected.expect("job", ["a"])
    clock.tick(300)
    assert expected.pending("job") == {"a"}
    assert expected.expires_in("job") == 0
    clock.tick(0.5)
    assert not expected.pending("job")
    assert expected.expires_in("job") is None


def test_inv_ex_3_each_child_has_its_own_five_minutes() -> None:
    clock = FakeClock()
    expected = Expectations(clock)
    expected.expect("job", ["old"])
    clock.tick(200)
    expected.expect("job", ["new"])
    assert expected.pending("job") == {"old", "new"}
    assert expected.expires_in("job") == 300
    clock.tick(101)
    assert expected.pending("job") == {"new"}


def test_inv_ex_5_an_absent_record_stays_absent() -> None:
    expected = Expectations(FakeClock())
    expected.observe("job", "a")
    assert not expected.pending("job")
    assert len(expected) == 0


def test_a_key_that_is_gone_expects_nothing() -> None:
    expected = Expectations(FakeClock())
    expected.expect("job", ["a"])
    expected.delete("job")
    assert not expected.pending("job")
