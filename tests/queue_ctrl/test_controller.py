"""The queue controller against an in-process API server."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from support.controller_api import ControllerApi
from support.polling import wait_for
from support.running_controller import FakeRecorder, running

from batholith.kube.client.client import Client
from batholith.machinery.testing import FakeClock
from batholith.model.names import COMMANDS, PODGROUPS, QUEUES
from batholith.model.queue import Queue
from batholith.queue_ctrl.controller import QueueController, QueueSettings
from batholith.queue_ctrl.metrics import QueueMetrics

CLOSED_BY_PARENT = "volcano.sh/closed-by-parent"


@dataclass
class QueueHarness:
    api: ControllerApi
    client: Client
    recorder: FakeRecorder = field(default_factory=FakeRecorder)
    clock: FakeClock = field(default_factory=FakeClock)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def controller(self, **settings: Any) -> QueueController:
        return QueueController(
            self.client,
            settings=QueueSettings(**settings),
            clock=self.clock,
            recorder=self.recorder,
        )

    def queue(self, name: str, parent: str = "root", state: str = "Open") -> None:
        self.api.put(QUEUES, name, spec={"parent": parent}, status={"state": state})

    def podgroup(self, name: str, queue: str, phase: str) -> None:
        self.api.put(PODGROUPS, name, spec={"queue": queue}, status={"phase": phase})

    def command(self, name: str, action: str, queue: str, **fields: Any) -> None:
        target = {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "Queue",
            "name": queue,
            "uid": "any",
        }
        self.api.put(COMMANDS, name, action=action, target={**target, **fields})

    def state(self, name: str) -> str | None:
        found = self.api.objects(QUEUES).get(name, {})
        state: str | None = found.get("status", {}).get("state")
        return state

    def status(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self.api.objects(QUEUES)[name]["status"]
        return status

    def closed_by_parent(self, name: str) -> str | None:
        meta = self.api.objects(QUEUES)[name]["metadata"]
        mark: str | None = meta.get("annotations", {}).get(CLOSED_BY_PARENT)
        return mark

    @property
    def commands(self) -> int:
        return len(self.api.objects(COMMANDS))

    def writes(self, path: str = "") -> int:
        return self.api.writes(path)


@pytest.fixture
async def world() -> AsyncIterator[QueueHarness]:
    async with ControllerApi(QUEUES, PODGROUPS, COMMANDS) as api, api.client() as client:
        yield QueueHarness(api, client)


async def test_root_and_default_queues_are_created_and_opened(world: QueueHarness) -> None:
    async with running(world.controller()):
        await wait_for(lambda: world.state("root") == world.state("default") == "Open")
    root, default = (world.api.objects(QUEUES)[name]["spec"] for name in ("root", "default"))
    strategy = {"dequeueStrategy": "traverse"}  # of the definition
    assert root == {"weight": 1, "reclaimable": False, **strategy}
    assert default == {"weight": 1, "reclaimable": True, "parent": "root", **strategy}


async def test_deleted_default_queue_is_recreated(world: QueueHarness) -> None:
    async with running(world.controller()):
        await wait_for(lambda: world.state("default") == "Open")
        world.api.remove(QUEUES, "default")
        await wait_for(lambda: world.state("default") == "Open")


async def test_synced_queues_are_not_written(world: QueueHarness) -> None:
    """INV-PIPE-1: a start with nothing to do writes nothing."""
    world.queue("root", parent="")
    for name in ("default", "a", "b"):
        world.queue(name)
    async with running(world.controller()):
        world.queue("c", state="")
        await wait_for(lambda: world.state("c") == "Open")
    assert world.writes() == 1


async def test_quirks_q5_and_q6_closing_waits_for_the_last_podgroup_and_for_no_more(
    world: QueueHarness,
) -> None:
    """Scenario queue-close-open, and INV-VC-5."""
    world.queue("q")
    world.podgroup("g", "q", "Completed")
    async with running(world.controller()):
        world.command("c1", "CloseQueue", "q")
        await wait_for(lambda: world.state("q") == "Closing")
        await wait_for(lambda: world.commands == 0)
        world.api.remove(PODGROUPS, "g")
        await wait_for(lambda: world.state("q") == "Closed")
        assert world.closed_by_parent("q") is None
        world.command("c2", "OpenQueue", "q")
        await wait_for(lambda: world.state("q") == "Open" and world.commands == 0)
        assert world.closed_by_parent("q") == "false"
    assert world.recorder.events == [("Queue", "q", "Normal", "CloseQueue", "Close queue succeed")]


async def test_children_close_and_open_with_their_parent(world: QueueHarness) -> None:
    """Scenario queue-tree, with a grandchild and a child that was closed by Command."""
    world.queue("p")
    for name in ("c1", "c2"):
        world.queue(name, parent="p")
    world.queue("g", parent="c1")
    world.queue("byhand", parent="p", state="Closed")
    async with running(world.controller()):
        world.command("c", "CloseQueue", "p")
        family = ("p", "c1", "c2", "g")
        await wait_for(lambda: all(world.state(name) == "Closed" for name in family))
        assert [world.closed_by_parent(name) for name in (*family, "byhand")] == [
            None,
            "true",
            "true",
            "true",
            None,
        ]
        world.command("o", "OpenQueue", "p")
        await wait_for(lambda: all(world.state(name) == "Open" for name in family))
        await wait_for(lambda: all(world.closed_by_parent(name) == "false" for name in family))
    assert world.state("byhand") == "Closed"


async def test_quirk_q3_commands_of_one_queue_keep_their_order(world: QueueHarness) -> None:
    """INV-VC-2: each uses the state that the previous one wrote, even if the informer lags."""
    world.queue("q")
    async with running(world.controller()):
        for number in range(7):
            world.command(f"c{number}", "OpenQueue" if number % 2 else "CloseQueue", "q")
        await wait_for(lambda: world.commands == 0)
        states = [
            change.object["status"]["state"]
            for change in world.api.changes
            if change.resource == QUEUES and change.object["metadata"]["name"] == "q"
        ]
    changes = [state for last, state in zip(["", *states], states, strict=False) if state != last]
    assert changes == ["Open", *["Closed", "Open"] * 3, "Closed"]


async def test_existing_commands_are_executed_in_creation_order(
    world: QueueHarness,
) -> None:
    world.queue("q", state="Open")
    world.command("z", "CloseQueue", "q")
    world.command("a", "OpenQueue", "q")
    async with running(world.controller()):
        await wait_for(lambda: world.commands == 0)
    assert world.state("q") == "Open"
    assert len(world.recorder.events) == 1


async def test_quirk_q9_command_exists_until_it_is_executed(world: QueueHarness) -> None:
    """INV-VC-1, INV-LC-4: the write is rejected, the controller dies, another one continues."""
    world.queue("root", parent="")
    world.queue("default")
    world.queue("q")
    async with running(world.controller()):
        world.api.fail(500, count=1000)
        world.command("c", "CloseQueue", "q")
        await wait_for(lambda: world.writes("/queues/q/status") > 0)
    assert world.commands == 1
    world.api.faults.clear()
    async with running(world.controller()):
        await wait_for(lambda: world.commands == 0)
    assert world.state("q") == "Closed"


async def test_conflict_requeues_the_queue(world: QueueHarness) -> None:
    world.queue("q")
    async with running(world.controller()):
        await wait_for(lambda: world.state("default") == "Open")
        conflict = world.api.fail(409, count=2)
        world.command("c", "CloseQueue", "q")
        await wait_for(lambda: conflict.injected)
        while world.commands:
            await world.clock.advance(1)
    assert world.state("q") == "Closed"


async def test_opening_below_a_closed_parent_fails_with_an_event(world: QueueHarness) -> None:
    """Worked example 3: the child stays closed, a Warning explains why, the Command is deleted."""
    world.queue("root", parent="")  # else "p" may exceed its requeues before the root is created
    world.queue("p", state="Closed")
    world.queue("q", parent="p", state="Closed")
    async with running(world.controller(max_requeues=3)):
        world.command("c", "OpenQueue", "q")
        while world.commands:
            await world.clock.advance(1)
    assert world.state("q") == "Closed"
    assert world.recorder.events == [
        (
            "Queue",
            "q",
            "Warning",
            "OpenQueue",
            "OpenQueue failed: the parent queue 'p' is Closed and must be opened first",
        )
    ]


async def test_child_opens_if_its_parent_opens_in_time(world: QueueHarness) -> None:
    world.queue("p", state="Closed")
    world.queue("q", parent="p", state="Closed")
    async with running(world.controller()):
        world.command("c", "OpenQueue", "q")
        world.command("d", "OpenQueue", "p")
        await wait_for(lambda: world.state("q") == "Open")
        await wait_for(lambda: world.commands == 0)


async def test_command_delete_is_retried_after_a_conflict(
    world: QueueHarness,
) -> None:
    world.queue("q")
    async with running(world.controller()):
        await wait_for(lambda: world.state("default") == "Open")
        world.api.fail(409, "DELETE")
        world.command("c", "CloseQueue", "q")
        await wait_for(lambda: world.state("q") == "Closed")
        while world.commands:
            await world.clock.advance(1.0)


async def test_foreign_commands_are_ignored_and_those_without_queue_deleted(
    world: QueueHarness,
) -> None:
    world.command("job", "AbortJob", "q", apiVersion="batch.volcano.sh/v1alpha1", kind="Job")
    world.command("unknown", "CloseQueue", "nosuch")
    world.command("root", "CloseQueue", "root")
    async with running(world.controller()):
        await wait_for(lambda: world.commands == 1)
    assert list(world.api.objects(COMMANDS)) == ["d/job"]
    assert world.state("root") in (None, "Open")


async def test_queue_without_parent_gets_the_root_as_parent(world: QueueHarness) -> None:
    world.api.put(QUEUES, "q", spec={"weight": 2})
    async with running(world.controller()):
        await wait_for(lambda: world.state("q") == "Open")
    spec = world.api.objects(QUEUES)["q"]["spec"]
    assert (spec["weight"], spec["parent"]) == (2, "root")


async def test_count_writes_are_rate_limited_and_state_writes_are_not(world: QueueHarness) -> None:
    world.queue("q")
    controller = world.controller(metrics=QueueMetrics(world.registry))
    async with running(controller):
        await wait_for(lambda: world.state("default") == "Open")
        world.podgroup("g0", "q", "Pending")
        await wait_for(lambda: world.status("q").get("pending") == 1)
        world.podgroup("g0", "q", "Inqueue")
        for number in range(1, 20):
            world.podgroup(f"g{number}", "q", "Running")
        metric = "volcano_queue_pod_group_running_count"
        labels = {"queue_name": "q"}
        await wait_for(lambda: world.registry.get_sample_value(metric, labels) == 19)
        await world.clock.advance(0.9)
        assert world.writes("/queues/q/status") == 1
        await wait_for(controller.queue.delayed_count)
        await world.clock.advance(0.2)
        await wait_for(lambda: world.status("q").get("running") == 19)
        assert world.status("q") == {"state": "Open", "inqueue": 1, "running": 19}
        assert world.writes("/queues/q/status") == 2
        world.command("c", "CloseQueue", "q")
        await wait_for(lambda: world.state("q") == "Closing")
    assert world.registry.get_sample_value(metric, labels) == 19


async def test_quirk_q4_moved_podgroup_is_counted_in_its_current_queue(world: QueueHarness) -> None:
    world.queue("a")
    world.queue("b")
    world.podgroup("g", "a", "Running")
    async with running(world.controller()):
        await wait_for(lambda: world.status("a").get("running") == 1)
        world.podgroup("g", "b", "Running")
        await wait_for(lambda: world.status("b").get("running") == 1)
        await world.clock.advance(2)
        await wait_for(lambda: "running" not in world.status("a"))


async def test_quirk_q4_recreated_queue_counts_its_podgroups(world: QueueHarness) -> None:
    world.queue("q")
    world.podgroup("g", "q", "Running")
    async with running(world.controller()):
        await wait_for(lambda: world.status("q").get("running") == 1)
        world.api.remove(QUEUES, "q")
        world.queue("q", state="")
        world.command("c", "CloseQueue", "q")
        while world.commands:
            await world.clock.advance(1)
        assert world.state("q") == "Closing"


async def test_quirk_q8_unknown_action_records_a_warning(
    world: QueueHarness,
) -> None:
    world.queue("q")
    async with running(world.controller()):
        await wait_for(lambda: world.state("default") == "Open")
        world.command("c", "DanceQueue", "q")
        await wait_for(lambda: world.commands == 0)
    ((kind, name, level, reason, message),) = world.recorder.events
    assert (kind, name, level, reason) == ("Queue", "q", "Warning", "UnknownAction")
    assert "'DanceQueue'" in message
    assert world.state("q") == "Open"


async def test_inv_pipe_4_informer_objects_are_never_modified(world: QueueHarness) -> None:
    """INV-PIPE-4: objects passed to a handler are unchanged after all reconciles."""
    seen: list[tuple[Queue, bytes]] = []

    def keep(old: Queue | None, new: Queue | None) -> None:
        if new is not None:
            seen.append((new, msgspec.json.encode(new)))

    world.queue("p", state="")
    world.queue("q", parent="p", state="")
    controller = world.controller()
    controller._queues.informer.add_event_handler(keep)
    async with running(controller):
        world.command("c", "CloseQueue", "p")
        await wait_for(lambda: world.state("q") == "Closed")
        world.command("d", "OpenQueue", "p")
        await wait_for(lambda: world.closed_by_parent("q") == "false")
    assert len(seen) > 6
    assert all(msgspec.json.encode(each) == then for each, then in seen)


async def test_required_queue_is_created_after_a_long_outage(
    world: QueueHarness,
) -> None:
    """As it does while the webhook server of the queues is still starting."""
    world.api.fail(500, "POST", "/queues", count=8)
    async with running(world.controller(max_requeues=2)):
        while world.state("root") != "Open" or world.state("default") != "Open":
            await world.clock.advance(1)


async def test_dropped_queue_is_reconciled_again_later(
    world: QueueHarness,
) -> None:
    """INV-PIPE-1: once calls no longer fail, the fixed point is reached without any event."""
    world.queue("root", parent="")
    world.queue("default")
    world.queue("q", state="Closing")
    world.api.fail(500, "PATCH", "/queues/q", count=4)
    async with running(world.controller(max_requeues=1)):
        while world.state("q") != "Closed":
            await world.clock.advance(1)
    warning = ("Queue", "q", "Warning", "SyncQueue")
    assert [event[:4] for event in world.recorder.events] == [warning, warning]


async def test_command_survives_server_errors(world: QueueHarness) -> None:
    world.queue("root", parent="")
    for name in ("default", "q"):
        world.queue(name)
    world.api.fail(503, "PATCH", "/queues/q", count=4)
    async with running(world.controller(max_requeues=1)):
        world.command("c", "CloseQueue", "q")
        while world.commands:
            await world.clock.advance(1)
    assert world.state("q") == "Closed"


async def test_standby_exports_no_counts(world: QueueHarness) -> None:
    metric, labels = "volcano_queue_pod_group_running_count", {"queue_name": "q"}
    world.queue("q")
    world.podgroup("g", "q", "Running")
    controller = world.controller(metrics=QueueMetrics(world.registry))
    ready, lead = asyncio.Event(), asyncio.Event()
    work = asyncio.create_task(controller.run(ready=ready, elected=lead))
    await ready.wait()
    assert world.registry.get_sample_value(metric, labels) is None
    lead.set()
    await wait_for(lambda: world.registry.get_sample_value(metric, labels) == 1)
    work.cancel()
    await asyncio.wait([work])


@pytest.mark.parametrize("name", ["", "a/b", "..", "x%2f", "Q"])
async def test_command_with_invalid_target_is_reported_and_deleted(
    world: QueueHarness, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(world.controller(max_requeues=-1)):
        await wait_for(lambda: world.state("default") == "Open")
        world.command("c", "CloseQueue", name)
        await wait_for(lambda: not world.commands)
    ((kind, about, event_type, reason, message),) = world.recorder.events
    assert (kind, about, event_type, reason) == ("Command", "c", "Warning", "InvalidTarget")
    assert message.startswith(f"cannot execute: target name {name!r} is invalid: ")
    assert "reconcile failed, requeuing" not in caplog.messages
