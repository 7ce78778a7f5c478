"""Quirks 50 to 58 of the reference (scheduler.md, section 11): what is written instead."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from support.controller_api import ControllerApi
from support.polling import wait_for
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue

from batholith.machinery.clock import SystemClock
from batholith.model.names import PODGROUPS, PODS, QUEUES
from batholith.model.podgroup import PodGroup, PodGroupCondition
from batholith.scheduler.framework.podgroup_status import (
    CONDITION_INTERVAL,
    MEMBER_GRACE_PERIOD,
    PodGroupReport,
)
from batholith.scheduler.state.queue.scheduling_queue import ANY
from batholith.scheduler.writers.status_updater import StatusUpdater, WriteIntervals


class StatusWorld(SchedulerWorld):
    """A gang *g* on a node with 64 CPUs, and a clock."""

    def __init__(self, minimum: int, **more: Any) -> None:
        super().__init__()
        self.now = 0.0
        self.upsert(node("a", cpu=64), podgroup("g", minimum, phase="", **more))

    def report_after(self, seconds: float = 0.0) -> PodGroupReport:
        """Run a cycle *seconds* later, and return what it reports."""
        self.now += seconds
        return self.report("g", now=self.now)

    def run_members(self, *names: str) -> None:
        """Report that pods run."""
        for name in names:
            self.upsert(pod(name, "g", node_name="a", phase="Running"))


def conditions(report: PodGroupReport) -> dict[str, PodGroupCondition]:
    return {each.type: each for each in report.status.conditions}


class Recorded(list[tuple[str, str, str]]):
    """Type, reason and message of the events so far."""

    def record(self, regarding: object, *, type: str, reason: str, message: str) -> None:  # noqa: A002
        self.append((type, reason, message))


@asynccontextmanager
async def updater() -> AsyncIterator[tuple[StatusUpdater, Recorded, ControllerApi]]:
    """A status updater that writes the group *g* of an API server."""
    async with ControllerApi(PODGROUPS, PODS, QUEUES) as api, api.client() as client:
        recorded = Recorded()
        intervals = WriteIntervals(podgroup=0.0, podgroup_max=0.0, pod=0.0)
        updating = StatusUpdater(
            client, recorder=recorded, clock=SystemClock(), write_intervals=intervals
        )
        writing = asyncio.create_task(updating.run())
        yield updating, recorded, api
        writing.cancel()
        await asyncio.wait([writing])


async def write(
    updating: StatusUpdater, api: ControllerApi, report: PodGroupReport, *, phase: str
) -> None:
    """Write the status of *report* to the stored group, and wait for its *phase*."""
    if "ns/g" not in api.objects(PODGROUPS):
        api.put(PODGROUPS, "g", namespace="ns")
    async with api.client() as client:
        stored = await client.get(PODGROUPS, "g", namespace="ns", view=PodGroup)
    updating.submit(PodGroupReport("ns/g", stored, report.status))

    def is_written() -> bool:
        status = api.objects(PODGROUPS)["ns/g"].get("status") or {}
        written = [each["message"] for each in status.get("conditions", ()) if "message" in each]
        wanted = [each.message for each in report.status.conditions if each.message]
        return status.get("phase") == phase and written == wanted

    await wait_for(is_written)


async def test_quirk_50_a_group_that_is_placed_gets_no_warning() -> None:
    world = StatusWorld(2)
    reports = [world.report_after()]
    world.upsert(pod("x", "g"), pod("y", "g"))
    reports.append(world.report_after())
    world.run_members("x", "y")
    reports.append(world.report_after())
    async with updater() as (updating, recorded, api):
        for report in reports:
            await write(updating, api, report, phase=report.status.phase)
        await wait_for(lambda: recorded)
    assert [each.status.phase for each in reports] == ["Inqueue", "Inqueue", "Running"]
    assert all("Unschedulable" not in conditions(each) for each in reports)
    assert recorded == [("Normal", "Scheduled", "pod group is ready")]


def test_quirk_51_a_complete_gang_is_not_pending_while_replacements_are_bound() -> None:
    world = StatusWorld(2)
    world.run_members("x", "y")
    assert world.report_after().status.phase == "Running"
    world.remove(pod("x", "g", node_name="a", phase="Running"))
    world.upsert(pod("z", "g"))
    allocated = world.report_after()
    assert allocated.status.phase == "Running"
    world.upsert(pod("z", "g", node_name="a"))
    assert world.report_after().status.phase == "Running"


def test_quirk_52_terminating_members_keep_a_phase_and_bring_none_about() -> None:
    world = StatusWorld(2)
    world.report_after()
    leaving = [pod(name, "g", node_name="a", phase="Running", terminating=True) for name in "xy"]
    world.upsert(*leaving)
    assert world.report_after().status.phase == "Inqueue"  # pods of an earlier group of that name
    world = StatusWorld(2)
    world.run_members("x", "y")
    assert world.report_after().status.phase == "Running"
    world.upsert(pod("y", "g", node_name="a", phase="Failed"))
    world.report_after()
    assert world.report_after(MEMBER_GRACE_PERIOD).status.phase == "Unknown"
    world.upsert(leaving[0])
    assert world.report_after().status.phase == "Unknown"  # a failed and a terminating one


def test_quirk_52_a_completed_group_keeps_its_phase_while_its_pods_are_deleted() -> None:
    world = StatusWorld(1)
    world.upsert(pod("x", "g", node_name="a", phase="Succeeded"))
    assert world.report_after().status.phase == "Completed"
    world.remove(pod("x", "g"))
    world.upsert(pod("y", "g", node_name="a", terminating=True))
    assert world.report_after().status.phase == "Completed"


async def test_quirk_53_condition_and_event_count_missing_members_of_the_minimum() -> None:
    world = StatusWorld(3)
    world.upsert(podgroup("g", 3, phase="Inqueue"))
    world.run_members("x")
    world.upsert(*(pod(f"j-t-{number}", "g", cpu=100) for number in range(4)))
    report = world.report_after()
    message = conditions(report)["Unschedulable"].message
    assert message.startswith("2 of 3 pods cannot be scheduled: ")
    async with updater() as (updating, recorded, api):
        await write(updating, api, report, phase=report.status.phase)
        await wait_for(lambda: recorded)
    assert recorded == [("Warning", "Unschedulable", message)]


def test_quirk_53_a_missing_member_of_a_role_counts() -> None:
    world = StatusWorld(2, roles={"ps": 1, "worker": 1})
    for name in ("worker-0", "worker-1"):
        world.upsert(pod(name, "g", role="worker", node_name="a", phase="Running"))
    world.upsert(pod("ps-0", "g", role="ps", cpu=100))
    message = conditions(world.report_after())["Unschedulable"].message
    assert message.startswith("1 of 2 pods cannot be scheduled: ")


def test_quirk_54_missing_and_failed_members_are_not_missing_resources() -> None:
    world = StatusWorld(2)
    world.upsert(pod("x", "g"))
    world.report_after()
    report = world.report_after(MEMBER_GRACE_PERIOD)
    assert conditions(report)["Unschedulable"].reason == "NotEnoughTasks"
    world = StatusWorld(2)
    world.run_members("x")
    world.upsert(pod("y", "g", node_name="a", phase="Failed"))
    world.report_after()
    report = world.report_after(MEMBER_GRACE_PERIOD)
    assert conditions(report)["Unschedulable"].reason == "NotEnoughTasks"


async def test_quirk_55_a_failed_member_is_reported_once() -> None:
    world = StatusWorld(3)
    world.run_members("x", "y", "z")
    running = world.report_after()
    world.upsert(pod("z", "g", node_name="a", phase="Failed"))
    world.report_after()
    reports = [world.report_after(MEMBER_GRACE_PERIOD) for _ in range(3)]
    assert {each.status.phase for each in reports} == {"Unknown"}
    message = conditions(reports[0])["Unschedulable"].message
    assert message.endswith("2 of the 3 pods that the group needs exist, 1 failed")
    async with updater() as (updating, recorded, api):
        await write(updating, api, running, phase="Running")
        for report in reports:
            await write(updating, api, report, phase="Unknown")
        await wait_for(lambda: len(recorded) == 2)
        patches = api.count("patch", PODGROUPS)
    assert recorded[1] == ("Warning", "Unschedulable", message)
    assert patches == 2


def test_quirk_56_the_origin_reason_is_that_of_the_first_unfit_pod() -> None:
    messages = set()
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        world = StatusWorld(3)
        pods = [
            pod(f"j-{role}-{number}", "g", role=role, cpu=cpu)
            for number, (role, cpu) in enumerate([("a", 100), ("b", 200), ("c", 300)])
        ]
        world.report_after()
        world.upsert(*(pods[number] for number in order))
        for _ in range(2):
            messages.add(conditions(world.report_after())["Unschedulable"].message)
            world.cluster.scheduling_queue.publish(ANY)
    (message,) = messages
    assert "j-a-0: " in message


def test_quirk_56_a_pod_that_is_blocked_on_its_own_is_not_always_the_origin() -> None:
    world = StatusWorld(3)
    world.report_after()
    world.upsert(
        pod("j-a-0", "g", role="a", cpu=100),
        pod("j-b-1", "g", role="b", cpu=200),
        pod("j-c-2", "g", role="c", cpu=300),
    )
    message = conditions(world.report_after())["Unschedulable"].message
    assert "j-a-0: " in message


def test_quirk_57_a_best_effort_pod_that_fits_no_node_is_unschedulable() -> None:
    world = StatusWorld(1)
    world.report_after()
    world.upsert(pod("x", "g", cpu=0, selector={"zone": "none"}))
    report = world.report_after()
    (condition,) = report.status.conditions
    assert (condition.type, report.status.phase) == ("Unschedulable", "Inqueue")
    assert "didn't match" in condition.message
    (reported,) = report.pod_conditions
    assert reported.reason == "Unschedulable" and "didn't match" in reported.message


async def test_quirk_58_a_refusal_at_enqueue_is_a_warning_with_its_text() -> None:
    world = StatusWorld(1, resources={"cpu": 100})
    without_pods = world.report_after()
    world.upsert(pod("x", "g", cpu=100))
    with_pods = world.report_after(CONDITION_INTERVAL)
    text = "insufficient cpu (requested 100, free 76.8, overcommit factor 1.2)"
    for report in (without_pods, with_pods):
        assert report.status.phase == "Pending"
        assert text in conditions(report)["Unschedulable"].message
    assert text in with_pods.pod_conditions[0].message
    async with updater() as (updating, recorded, api):
        await write(updating, api, with_pods, phase="Pending")
        await wait_for(lambda: recorded)
    ((kind, reason, message),) = recorded
    assert (kind, reason) == ("Warning", "Unschedulable")
    assert text in message


def test_quirk_58_a_queue_that_is_not_open_is_named() -> None:
    world = StatusWorld(1)
    world.upsert(queue(state="Closed"))
    assert "default" in conditions(world.report_after())["Unschedulable"].message
