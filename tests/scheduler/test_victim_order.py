"""Which pods are evicted rather than others: gangs that have just started are protected, and of
those of one priority the ones that lose the least work are evicted."""

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.fair_share import annotated_queue
from support.preemption import EvictingWorld, conf, member, node, podgroup

from batholith.model import names, times
from batholith.model.meta import ObjectMeta
from batholith.model.podgroup import PodGroup
from batholith.scheduler.state.core_types import PriorityClass

NOW = datetime(2026, 1, 5, tzinfo=UTC).timestamp()


def at(seconds_ago: float) -> str:
    return times.format(datetime.fromtimestamp(NOW - seconds_ago, UTC))


def full_world(text: str = "") -> EvictingWorld:
    """A node of four CPUs without pods; victims may leave their gang below its minimum."""
    world = EvictingWorld(text or conf(gang=False))
    world.time = NOW
    world.upsert(node("a", cpu=4))
    return world


def set_annotations(world: EvictingWorld, gang: str, **annotations: str) -> None:
    """Give the PodGroup of a gang Batholith's annotations, ``_`` for ``-``."""
    found = world.cluster.gangs[f"ns/{gang}"].podgroup
    assert found is not None
    prefixed = {f"batholith.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    metadata = msgspec.structs.replace(found.metadata, annotations=prefixed)
    changed: PodGroup = msgspec.structs.replace(found, metadata=metadata)
    world.cluster.described.update_podgroup(found, changed)


def checkpoint(text: str) -> dict[str, str]:
    return {names.LAST_CHECKPOINT: text}


# -- protection ------------------------------------------------------------------------------------


def test_young_gang_of_a_queue_is_not_preempted_before_its_minimum_time() -> None:
    world = full_world()
    world.upsert(annotated_queue("default", min_runtime="10m"))
    world.gang("low", 4, nodes=("a",), started=at(60))
    world.gang("high", 1, priority="high")
    world.run()
    assert world.evicted == []
    assert world.cluster.scheduling_queue.starving.next_due() == NOW - 60 + 600
    world.run(time=NOW + 539)
    assert world.evicted == []
    world.run(time=NOW + 540)
    assert len(world.evicted) == 1


def test_young_gang_is_not_reclaimed_before_the_minimum_time_of_its_queue() -> None:
    world = full_world()
    world.upsert(annotated_queue("default", min_runtime="10m"), annotated_queue("other"))
    world.gang("rich", 4, minimum=0, nodes=("a",), started=at(60))
    world.gang("poor", 1, queue_name="other")
    world.run()
    assert world.evicted == []
    world.run(time=NOW + 540)
    assert len(world.evicted) == 1


def protected_class(text: str) -> PriorityClass:
    metadata = ObjectMeta(name="low", annotations={names.MIN_RUNTIME: text})
    return PriorityClass(metadata=metadata, value=1)


def test_priority_class_protects_its_gangs_and_the_longer_time_counts() -> None:
    world = full_world()
    world.cluster.update_priority_class(None, protected_class("20m"))
    world.upsert(annotated_queue("default", min_runtime="10m"))
    world.gang("low", 4, nodes=("a",), started=at(0))
    world.gang("high", 1, priority="high")
    for later, evicted in ((0, 0), (601, 0), (1199, 0), (1200, 1)):
        world.run(time=NOW + later)
        assert len(world.evicted) == evicted


def test_malformed_time_of_a_priority_class_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = full_world()
    world.cluster.update_priority_class(None, protected_class("soon"))
    world.gang("low", 4, nodes=("a",), started=at(0))
    world.gang("high", 1, priority="high")
    world.run()
    assert len(world.evicted) == 1
    assert caplog.messages.count("ignore malformed annotation") == 1


def test_time_of_the_nearest_queue_above_counts() -> None:
    world = full_world()
    world.upsert(annotated_queue("top", min_runtime="1h"))
    world.upsert(annotated_queue("middle", parent="top", min_runtime="1m"))
    world.upsert(annotated_queue("leaf", parent="middle"), annotated_queue("own", parent="top"))
    world.gang("one", 2, nodes=("a",), queue_name="leaf", started=at(120))
    world.gang("two", 2, nodes=("a",), queue_name="own", started=at(120))
    for queue_name in ("leaf", "own"):
        world.gang(f"high-{queue_name}", 1, priority="high", queue_name=queue_name)
    world.run()
    assert [name.split("-")[0] for name in world.evicted] == ["one"]


def test_pod_that_was_added_to_an_old_gang_is_not_protected() -> None:
    world = full_world()
    world.upsert(annotated_queue("default", min_runtime="10m"))
    world.gang("low", 1, nodes=("a",), cpu=1, started=at(3600), preemptable="false")
    world.upsert(member("low-t-1", "low", "a", cpu=3, started=at(5)))
    world.gang("high", 1, priority="high", cpu=3)
    world.run()
    assert world.evicted == ["low-t-1"]


def test_gang_that_waits_is_tried_when_the_time_is_removed() -> None:
    world = full_world()
    world.upsert(annotated_queue("default", min_runtime="10m"))
    world.gang("low", 4, nodes=("a",), started=at(60))
    world.gang("high", 1, priority="high")
    world.run()
    world.upsert(annotated_queue("default"))
    world.run(time=NOW + 2)
    assert len(world.evicted) == 1


# -- lost work -------------------------------------------------------------------------------------


def test_pod_that_has_run_for_less_resources_times_seconds_is_evicted() -> None:
    """The other one has started later, but has more of the memory."""
    world = full_world()
    world.gang("small", 1, nodes=("a",), cpu=2, memory="1Gi", started=at(200))
    world.gang("large", 1, nodes=("a",), cpu=2, memory="12Gi", started=at(150))
    world.gang("high", 1, priority="high", cpu=2)
    world.run()
    assert world.evicted == ["small-t-0"]


@pytest.mark.parametrize("on_pod", [True, False])
def test_what_was_saved_by_a_checkpoint_is_not_lost(on_pod: bool) -> None:
    world = full_world()
    annotations = checkpoint(at(10)) if on_pod else {}
    world.gang("saved", 2, nodes=("a",), started=at(3600), annotations=annotations)
    world.gang("young", 2, nodes=("a",), started=at(60))
    if not on_pod:
        set_annotations(world, "saved", last_checkpoint=at(10))
    world.gang("high", 1, priority="high")
    world.run()
    assert [name.split("-")[0] for name in world.evicted] == ["saved"]


@pytest.mark.parametrize("text", ["tomorrow", "", "2026-01-04", at(-3600)])
def test_checkpoint_that_is_malformed_or_in_the_future_saves_at_most_all(text: str) -> None:
    world = full_world()
    world.gang("other", 2, nodes=("a",), started=at(60), annotations=checkpoint(text))
    world.gang("young", 2, nodes=("a",), started=at(0))
    world.gang("high", 1, priority="high")
    world.run()
    assert [name.split("-")[0] for name in world.evicted] == ["young"]


def test_checkpoint_of_a_running_pod_counts_as_soon_as_it_is_written() -> None:
    world = full_world()
    world.gang("a", 2, nodes=("a",), started=at(300))
    world.gang("b", 2, nodes=("a",), started=at(200))
    world.run()
    found = world.pod_objects["uid-a-t-1"]
    metadata = msgspec.structs.replace(
        found.metadata, annotations=found.metadata.annotations | checkpoint(at(5))
    )
    world.upsert(msgspec.structs.replace(found, metadata=metadata))
    world.gang("high", 1, priority="high")
    world.run()
    assert world.evicted == ["a-t-1"]


@pytest.mark.parametrize(
    ("limit", "expected"), [("100s", "old"), ("110s", "ending"), ("", "ending")]
)
def test_gang_of_which_a_tenth_of_its_limit_is_left_is_evicted_last(
    limit: str, expected: str
) -> None:
    world = full_world()
    world.gang("old", 2, nodes=("a",), started=at(3600))
    world.gang("ending", 2, nodes=("a",), started=at(90))
    if limit:
        set_annotations(world, "ending", time_limit=limit)
    world.gang("high", 1, priority="high")
    world.run()
    assert [name.split("-")[0] for name in world.evicted] == [expected]


@dataclass(frozen=True)
class Running:
    """A gang of one pod that fills its node."""

    priority: str
    started: int
    """Seconds ago."""
    saved: int | None
    memory: int
    """In GiB: all of its node."""
    limit: int | None

    def key(self, memory: int) -> tuple[float, ...]:
        """Smallest first, if all nodes have that *memory* together."""
        ends_soon = self.limit is not None and self.started >= 0.9 * self.limit
        since = self.started if self.saved is None else min(self.started, self.saved)
        share = max(1 / 4, self.memory / memory)
        return ({"low": 1, "mid": 10}[self.priority], ends_soon, share * since, self.started)


gangs = st.lists(
    st.builds(
        Running,
        st.sampled_from(["low", "mid"]),
        st.integers(0, 1000),
        st.none() | st.integers(0, 1000),
        st.integers(1, 8),
        st.none() | st.integers(1, 2000),
    ),
    min_size=4,
    max_size=4,
)


@settings(max_examples=examples(100))
@given(gangs, st.integers(0, 600))
def test_victim_is_the_first_by_priority_limit_and_lost_work_that_is_not_protected(
    running: list[Running], minimum: int
) -> None:
    world = EvictingWorld(conf(gang=False))
    world.time = NOW
    if minimum:
        world.upsert(annotated_queue("default", min_runtime=f"{minimum}s"))
    for number, each in enumerate(running):
        world.upsert(node(f"n{number}", cpu=4, memory=f"{each.memory}Gi"))
        annotations = {} if each.saved is None else checkpoint(at(each.saved))
        world.gang(
            f"g{number}",
            1,
            nodes=(f"n{number}",),
            priority=each.priority,
            cpu=4,
            memory=f"{each.memory}Gi",
            started=at(each.started),
            annotations=annotations,
        )
        if each.limit is not None:
            set_annotations(world, f"g{number}", time_limit=f"{each.limit}s")
    world.upsert(podgroup("high", 1, priority_class="high"))
    world.gang("high", 1, priority="high", cpu=4)
    world.run()
    free = [each for each in running if each.started >= minimum]
    if not free:
        assert world.evicted == []
        return
    (victim,) = world.evicted
    chosen = running[int(victim[1])]
    assert chosen in free
    memory = sum(each.memory for each in running)
    assert chosen.key(memory) == pytest.approx(min(each.key(memory) for each in free))
