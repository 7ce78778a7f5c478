"""Event handler of children, and the queue of orphans."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from support.children import LABELS, OWNER, Anything, Pod, pod

from batholith.kube.errors import InvalidError, NotFoundError
from batholith.machinery.child_events import ChildEventHandler, FinalizerTracking
from batholith.machinery.controller import ShardedQueue
from batholith.machinery.expectations import ControllerExpectations, FinalizerExpectations
from batholith.machinery.orphans import OrphanQueue, OrphanSettings
from batholith.machinery.rate_limiters import job_rate_limiter
from batholith.machinery.recording import Failures, RecordingControl
from batholith.machinery.testing import FakeClock, run_ready_tasks
from batholith.model.names import CONFIGMAPS

FINALIZER = "example.com/tracking"
DELETED: Any = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
US = msgspec.to_builtins(OWNER.controller_reference())
OTHER = {**US, "name": "other", "uid": "other-uid"}
KEY = "default/web"


def child(
    controller: dict[str, Any] | None = US, *, version: int = 1, tracked: bool = True, **more: Any
) -> Pod:
    return pod(
        name="web-0",
        uid="uid-0",
        resourceVersion=str(version),
        ownerReferences=[controller] if controller else [],
        finalizers=[FINALIZER] if tracked else [],
        **more,
    )


class World:
    """A handler, and what it did."""

    def __init__(self) -> None:
        self.owners: dict[str, Anything] = {
            KEY: Anything(metadata=OWNER.metadata),
            "default/other": Anything(
                metadata=msgspec.structs.replace(OWNER.metadata, name="other", uid="other-uid")
            ),
        }
        self.added: list[str] = []
        self.orphans: list[str] = []
        self.finished: set[str] = set()
        self.matching: list[str] = []
        self.expectations = ControllerExpectations(FakeClock())
        self.removals = FinalizerExpectations()
        self.handler = ChildEventHandler[Pod](
            owner=CONFIGMAPS,
            get_owner=self.owners.get,
            add=self.added.append,
            expectations=self.expectations,
            matching_owners=lambda child: self.matching if child.metadata.labels else [],
            tracking=FinalizerTracking(
                finalizer=FINALIZER,
                expectations=self.removals,
                add_orphan=lambda meta: self.orphans.append(meta.name),
                is_finished=self.finished.__contains__,
            ),
        )
        self.expectations.expect_creations(KEY, ["web-0"])
        self.expectations.expect_deletions(KEY, ["uid-0"])
        self.removals.expect_removals(KEY, ["uid-0"])

    @property
    def observed(self) -> set[str]:
        """Which of the three expectations were lowered."""
        pending = {
            "creation": self.expectations.pending_creations(KEY),
            "deletion": self.expectations.pending_deletions(KEY),
            "removal": self.removals.pending(KEY),
        }
        return {name for name, left in pending.items() if not left}


@pytest.fixture
def world() -> World:
    return World()


def test_added_child_is_an_observed_creation(world: World) -> None:
    world.handler(None, child())
    assert (world.observed, world.added) == ({"creation"}, [KEY])


def test_child_that_is_added_terminating_is_observed_as_created_and_deleted(world: World) -> None:
    """Its creation is not reported again: without this the key would wait for the expiry."""
    world.handler(None, child(**DELETED))
    assert (world.observed, world.added) == ({"creation", "deletion"}, [KEY])


@pytest.mark.parametrize("reference", [{**US, "uid": "old-uid"}, {**US, "kind": "Secret"}])
def test_child_of_an_unknown_owner_is_ignored(world: World, reference: dict[str, Any]) -> None:
    world.handler(None, child(reference))
    assert (world.observed, world.added, world.orphans) == (set(), [], [])


def test_added_orphan_lowers_nothing_and_may_be_adopted(world: World) -> None:
    world.matching = [KEY]
    world.handler(None, child(None, labels=LABELS))
    assert (world.observed, world.added, world.orphans) == (set(), [KEY], ["web-0"])


def test_orphan_without_finalizer_is_not_queued(world: World) -> None:
    world.handler(None, child(None, tracked=False))
    assert (world.added, world.orphans) == ([], [])


def test_orphan_that_matches_several_owners_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.matching = [KEY, "default/other"]
    world.handler(None, child(None, labels=LABELS))
    assert world.added == [KEY, "default/other"]
    assert [record.getMessage() for record in caplog.records] == [
        "child matches the selectors of several owners"
    ]


def test_update_adds_the_owner(world: World) -> None:
    world.handler(child(), child(version=2))
    assert (world.observed, world.added) == (set(), [KEY])


def test_update_without_finalizer_is_an_observed_removal(world: World) -> None:
    world.handler(child(), child(version=2, tracked=False))
    assert (world.observed, world.added) == ({"removal"}, [KEY])


def test_unchanged_child_is_ignored(world: World) -> None:
    """INV-INF-5."""
    world.handler(child(), child())
    assert (world.observed, world.added) == (set(), [])


def test_deletion_timestamp_is_an_observed_deletion(world: World) -> None:
    world.handler(child(), child(version=2, **DELETED))
    assert (world.observed, world.added) == ({"deletion"}, [KEY])


def test_deletion_timestamp_without_finalizer_is_both(world: World) -> None:
    world.handler(child(), child(version=2, tracked=False, **DELETED))
    assert (world.observed, world.added) == ({"deletion", "removal"}, [KEY])


def test_final_deletion_is_both(world: World) -> None:
    world.handler(child(), None)
    assert (world.observed, world.added, world.orphans) == ({"deletion", "removal"}, [KEY], [])


def test_inv_ex_6_deletion_is_observed_once(world: World) -> None:
    """INV-EX-6: the deletion timestamp and the end are two events."""
    world.expectations.expect_deletions(KEY, ["uid-1"])
    world.handler(child(), child(version=2, **DELETED))
    world.handler(child(version=2, **DELETED), None)
    assert world.expectations.pending_deletions(KEY) == {"uid-1"}


def test_released_child_adds_the_former_owner_and_is_an_orphan(world: World) -> None:
    world.matching = ["default/other"]
    world.handler(child(), child(None, version=2, labels=LABELS))
    assert (world.added, world.orphans) == ([KEY, "default/other"], ["web-0"])


def test_child_with_another_owner_adds_both(world: World) -> None:
    world.handler(child(), child(OTHER, version=2))
    assert world.added == [KEY, "default/other"]


def test_orphan_is_offered_again_after_a_change_of_labels(world: World) -> None:
    world.matching = [KEY]
    world.handler(child(None), child(None, version=2))
    assert world.added == []
    world.handler(child(None), child(None, version=3, labels=LABELS))
    assert world.added == [KEY]


@pytest.mark.parametrize("final", [False, True])
def test_terminating_child_of_a_finished_owner_is_an_orphan(world: World, final: bool) -> None:
    world.finished.add(KEY)
    world.handler(child(), None if final else child(version=2, **DELETED))
    assert world.added == []
    assert world.orphans == ([] if final else ["web-0"])


@pytest.mark.parametrize("controller", [None, {**US, "uid": "old-uid"}])
def test_terminating_child_without_owner_is_an_orphan(
    world: World, controller: dict[str, Any] | None
) -> None:
    world.handler(child(controller), child(controller, version=2, **DELETED))
    assert (world.observed, world.added, world.orphans) == (set(), [], ["web-0"])


def test_children_without_finalizer_need_no_tracking(world: World) -> None:
    handler = ChildEventHandler[Pod](
        owner=CONFIGMAPS,
        get_owner=world.owners.get,
        add=world.added.append,
        expectations=world.expectations,
    )
    handler(None, child(tracked=False))
    handler(child(tracked=False), child(version=2, tracked=False, **DELETED))
    handler(child(tracked=False), None)
    handler(None, child(None))
    handler(None, None)
    assert world.added == [KEY] * 3


# The queue of orphans.


class Orphans:
    """An orphan queue over a store of pods."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.pods: dict[str, Pod] = {"default/web-0": child(None)}
        self.adopted: set[str] = set()
        self.control = RecordingControl(view=Pod)
        self.work = ShardedQueue(
            name="job_orphan_pod", clock=self.clock, limiter=job_rate_limiter()
        )
        self.queue = OrphanQueue(
            self.control,
            self.work,
            OrphanSettings(finalizer=FINALIZER, get=self.pods.get, is_orphan=self.is_orphan),
        )

    async def is_orphan(self, pod: Pod) -> bool:
        return pod.metadata.uid not in self.adopted

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.queue.run())
        await run_ready_tasks()
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def orphans() -> Orphans:
    return Orphans()


async def test_finalizer_of_an_orphan_is_removed_by_uid(orphans: Orphans) -> None:
    orphans.queue.add(child(None).metadata)
    async with orphans.running():
        ((_, patch),) = orphans.control.patches
    assert patch == {
        "metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER], "uid": "uid-0"}
    }


async def test_pod_that_is_no_orphan_any_more_is_not_patched(orphans: Orphans) -> None:
    orphans.queue.add(child(None, tracked=False).metadata)
    assert orphans.work.depth() == 0
    orphans.adopted.add("uid-0")
    orphans.queue.add(child(None).metadata)
    async with orphans.running():
        assert orphans.control.patches == []
        orphans.adopted.clear()
        orphans.pods["default/web-0"] = child(None, tracked=False)
        orphans.queue.add(child(None).metadata)
        await run_ready_tasks()
        del orphans.pods["default/web-0"]
        orphans.queue.add(child(None).metadata)
        await run_ready_tasks()
        assert orphans.control.patches == []
        assert orphans.work.num_requeues("default/web-0") == 0


@pytest.mark.parametrize(
    ("error", "attempts"), [(NotFoundError("no such pod"), 1), (InvalidError("other uid"), 3)]
)
async def test_failed_removal_is_retried_unless_the_pod_is_deleted(
    orphans: Orphans, error: Exception, attempts: int
) -> None:
    orphans.control.fail_patches = Failures(error)
    orphans.queue.add(child(None).metadata)
    async with orphans.running():
        await orphans.clock.advance(1)
        await orphans.clock.advance(2)
        assert len(orphans.control.patches) == attempts
