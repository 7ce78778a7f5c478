"""Delayed keys: when they are delivered, and that none is lost."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.examples import examples

from batholith.machinery.delay_heap import DelayHeap
from batholith.machinery.testing import FakeClock

KEYS = st.sampled_from(["a", "b", "c"])
SECONDS = st.sampled_from([0.5, 1.0, 2.0, 5.0, 30.0])


class DelayMachine(RuleBasedStateMachine):
    """INV-DQ-1 to INV-DQ-4 against a plain dict of due times."""

    @initialize()
    def start(self) -> None:
        self.clock = FakeClock()
        self.out: list[tuple[float, str]] = []
        self.heap = DelayHeap(
            self.clock, lambda key: self.out.append((self.clock.monotonic(), key))
        )
        self.due: dict[str, float] = {}
        self.expected: list[tuple[float, str]] = []

    @rule(key=KEYS, seconds=SECONDS)
    def add(self, key: str, seconds: float) -> None:
        self.heap.add(key, seconds)
        due = self.clock.monotonic() + seconds
        self.due[key] = min(due, self.due.get(key, due))

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: float) -> None:
        self.clock.tick(seconds)
        now = self.clock.monotonic()
        for key in [key for key, due in self.due.items() if due <= now]:
            self.expected.append((self.due.pop(key), key))

    @invariant()
    def keys_are_due_on_time(self) -> None:
        assert sorted(self.out) == sorted(self.expected)
        assert len(self.heap) == len(self.due)
        assert self.heap.heap_size() <= 2 * len(self.due) + 16


TestDelayMachine = DelayMachine.TestCase
TestDelayMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)


def test_inv_dq_2_due_time_moves_forward_and_never_back() -> None:
    clock, out = FakeClock(), list[str]()
    heap = DelayHeap(clock, out.append)
    heap.add("a", 10)
    heap.add("a", 20)
    heap.add("a", 3)
    clock.tick(2.9)
    assert out == []
    clock.tick(0.2)
    assert out == ["a"]
    clock.tick(100)
    assert out == ["a"]


def test_inv_dq_3_heap_stays_small_under_ever_earlier_times() -> None:
    clock = FakeClock()
    heap = DelayHeap(clock, lambda key: None)
    for step in range(10_000):
        heap.add("a", 20_000 - step)
    assert len(heap) == 1
    assert heap.heap_size() < 20


def test_inv_dq_4_equal_due_times_are_delivered_together() -> None:
    clock, out = FakeClock(), list[str]()
    heap = DelayHeap(clock, out.append)
    for key in "abc":
        heap.add(key, 1)
    clock.tick(1)
    assert out == ["a", "b", "c"]


@given(
    delays=st.dictionaries(KEYS, SECONDS, min_size=1),
    jumps=st.lists(st.floats(-1e4, 1e4), max_size=5),
)
def test_inv_dq_5_clock_steps_neither_lose_nor_repeat_keys(
    delays: dict[str, float], jumps: list[float]
) -> None:
    clock, out = FakeClock(), list[str]()
    heap = DelayHeap(clock, out.append)
    for key, seconds in delays.items():
        heap.add(key, seconds)
    for jump in jumps:
        clock.step_monotonic(jump)
        clock.tick(1)
    clock.step_monotonic(1e5 - clock.monotonic())
    clock.tick(10)  # the heartbeat bound of INV-DQ-1
    assert sorted(out) == sorted(delays)


def test_closing_drops_delayed_keys_and_the_timer() -> None:
    clock, out = FakeClock(), list[str]()
    heap = DelayHeap(clock, out.append)
    heap.add("a", 1)
    heap.close()
    heap.add("b", 1)
    clock.tick(5)
    assert (out, len(heap), clock.timer_count) == ([], 0, 0)


def test_failing_delivery_does_not_delay_other_keys() -> None:
    clock, out = FakeClock(), list[str]()

    def ready(key: str) -> None:
        if key == "bad":
            raise RuntimeError("a mistake")
        out.append(key)

    heap = DelayHeap(clock, ready)
    for key, seconds in (("bad", 1.0), ("good", 1.0), ("later", 5.0)):
        heap.add(key, seconds)
    clock.tick(10)
    assert out == ["good", "later"]
