"""Which statuses the status updater writes, and when."""

import asyncio
from typing import Any

import pytest
from support.controller_api import ControllerApi
from support.polling import wait_for

from batholith.kube.client.client import Client
from batholith.machinery.change_rate import ChangeRate
from batholith.machinery.clock import SystemClock
from batholith.model.meta import ObjectReference
from batholith.model.names import PODGROUPS, QUEUES
from batholith.model.podgroup import PodGroup, PodGroupCondition, PodGroupStatus
from batholith.model.queue import Queue
from batholith.scheduler.framework.completeness import SCHEDULED
from batholith.scheduler.framework.podgroup_status import READY, PodGroupReport
from batholith.scheduler.writers.status_updater import StatusUpdater, WriteIntervals
from batholith.testing import RequestMatcher


@pytest.mark.parametrize("busy", [False, True])
async def test_phases_are_written_at_once_and_counts_later_in_a_busy_cluster(
    monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    monkeypatch.setattr(ChangeRate, "quiet_in", lambda _: 1000.0 if busy else 0.0)
    intervals = WriteIntervals(podgroup=0.0, podgroup_max=1000.0)
    async with ControllerApi(PODGROUPS, QUEUES) as api, api.client() as client:
        updater = StatusUpdater(
            client, recorder=None, clock=SystemClock(), write_intervals=intervals
        )

        def status_of_g() -> dict[str, Any]:
            status: dict[str, Any] = api.objects(PODGROUPS)["d/g"].get("status", {})
            return status

        async def submit(**status: Any) -> None:
            podgroup = await client.get(PODGROUPS, "g", namespace="d", view=PodGroup)
            updater.submit(PodGroupReport("d/g", podgroup, PodGroupStatus(**status)))

        api.put(PODGROUPS, "g")
        writing = asyncio.create_task(updater.run())
        await submit(phase="Running")
        await wait_for(lambda: status_of_g().get("phase") == "Running")
        await submit(phase="Running", running=1)
        if busy:
            await asyncio.sleep(0.1)  # a write without delay would be done by now
            assert "running" not in status_of_g()
        else:
            await wait_for(lambda: status_of_g().get("running") == 1)
        await submit(phase="Completed", running=2)
        await wait_for(lambda: status_of_g().get("phase") == "Completed")
        assert status_of_g()["running"] == 2
        writing.cancel()
        await asyncio.wait([writing])


class Reasons(list[str]):
    """Records the reasons of events."""

    def record(
        self,
        regarding: ObjectReference,
        *,
        type: str,  # noqa: A002 - the API's name
        reason: str,
        message: str,
    ) -> None:
        self.append(f"{regarding.name}: {reason}")


@pytest.mark.parametrize("busy", [False, True])
async def test_in_a_burst_running_is_written_with_later_counts(
    monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    monkeypatch.setattr(ChangeRate, "quiet_in", lambda _: 1000.0 if busy else 0.0)
    intervals = WriteIntervals(podgroup=1000.0, burst_size=1, start_rate=1e-3, start_max=0.3)
    events = Reasons()
    async with ControllerApi(PODGROUPS, QUEUES) as api, api.client() as client:
        updater = StatusUpdater(
            client, recorder=events, clock=SystemClock(), write_intervals=intervals
        )
        writing = asyncio.create_task(updater.run())
        podgroups = {}
        for name in ("first", "second"):
            api.put(PODGROUPS, name, spec={"minMember": 2}, status={"phase": "Inqueue"})
            podgroups[name] = await client.get(PODGROUPS, name, namespace="d", view=PodGroup)

        def submit(name: str, running: int) -> None:
            status = PodGroupStatus("Running", running=running)
            updater.submit(PodGroupReport(f"d/{name}", podgroups[name], status))

        def phase(name: str) -> str:
            found: str = api.objects(PODGROUPS)[f"d/{name}"]["status"]["phase"]
            return found

        submit("first", 1)
        submit("second", 1)
        assert events == ["first: Scheduled", "second: Scheduled"]
        await wait_for(lambda: phase("first") == "Running")
        if busy:
            await asyncio.sleep(0.1)  # a write without delay would be done by now
            assert phase("second") == "Inqueue"
            submit("second", 2)
        await wait_for(lambda: phase("second") == "Running")
        assert api.objects(PODGROUPS)["d/second"]["status"]["running"] == (2 if busy else 1)
        assert api.count("PATCH") == 2
        assert len(events) == 2
        writing.cancel()
        await asyncio.wait([writing])


@pytest.mark.parametrize("phase", ["Pending", "Unknown", "Completed"])
async def test_in_a_burst_other_phases_are_written_at_once(
    monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    monkeypatch.setattr(ChangeRate, "quiet_in", lambda _: 1000.0)
    intervals = WriteIntervals(podgroup=1000.0, podgroup_max=1000.0, start_max=1000.0)
    async with ControllerApi(PODGROUPS, QUEUES) as api, api.client() as client:
        updater = StatusUpdater(
            client, recorder=None, clock=SystemClock(), write_intervals=intervals
        )
        api.put(PODGROUPS, "g", spec={"minMember": 2}, status={"phase": "Inqueue"})
        podgroup = await client.get(PODGROUPS, "g", namespace="d", view=PodGroup)
        writing = asyncio.create_task(updater.run())
        updater.submit(PodGroupReport("d/g", podgroup, PodGroupStatus(phase)))
        await wait_for(lambda: api.objects(PODGROUPS)["d/g"]["status"]["phase"] == phase)
        writing.cancel()
        await asyncio.wait([writing])


async def test_scheduled_condition_is_written_with_the_next_phase() -> None:
    async with ControllerApi(PODGROUPS, QUEUES) as api, api.client() as client:
        intervals = WriteIntervals(podgroup=1000.0, podgroup_max=1000.0)
        updater = StatusUpdater(
            client, recorder=None, clock=SystemClock(), write_intervals=intervals
        )
        writing = asyncio.create_task(updater.run())
        api.put(PODGROUPS, "g")
        podgroup = await client.get(PODGROUPS, "g", namespace="d", view=PodGroup)
        ready = (PodGroupCondition(type=SCHEDULED, status="True", reason=READY),)
        for phase, conditions in (("Inqueue", ()), ("Inqueue", ready), ("Running", ready)):
            updater.submit(PodGroupReport("d/g", podgroup, PodGroupStatus(phase, conditions)))
            if not conditions:
                await wait_for(lambda: "status" in api.objects(PODGROUPS)["d/g"])
        await wait_for(lambda: api.objects(PODGROUPS)["d/g"]["status"]["phase"] == "Running")
        written = api.objects(PODGROUPS)["d/g"]["status"]["conditions"]
        assert [each["type"] for each in written] == [SCHEDULED]
        assert api.count("PATCH") == 2
        writing.cancel()
        await asyncio.wait([writing])


async def test_slow_write_does_not_delay_other_statuses() -> None:
    """With a shard per worker some of the other PodGroups would wait for the slow write."""
    async with ControllerApi(PODGROUPS) as api, api.client() as client:
        slow = api.faults.hold(RequestMatcher("PATCH", name="g-0"))
        updater = StatusUpdater(client, recorder=None, clock=SystemClock())
        writing = asyncio.create_task(updater.run())
        names = [f"g-{number}" for number in range(64)]
        for name in names:
            api.put(PODGROUPS, name)
            podgroup = await client.get(PODGROUPS, name, namespace="d", view=PodGroup)
            updater.submit(PodGroupReport(f"d/{name}", podgroup, PodGroupStatus(phase="Inqueue")))

        def written() -> set[str]:
            podgroups = api.objects(PODGROUPS)
            return {name for name in names if "status" in podgroups[f"d/{name}"]}

        await wait_for(lambda: written() == set(names) - {"g-0"})
        slow.release()
        await wait_for(lambda: written() == set(names))
        writing.cancel()
        await asyncio.wait([writing])


class LateResponseClient(Client):
    """A client whose first response arrives after the watch event of another client's write."""

    def __init__(self, api: ControllerApi) -> None:
        super().__init__(api.credentials, user_agent="test")
        self.api = api
        self.updater: StatusUpdater | None = None

    async def patch(self, *args: Any, **kwargs: Any) -> Any:
        response = await super().patch(*args, **kwargs)
        updater, self.updater = self.updater, None
        if updater is not None:
            self.api.put(QUEUES, "q", status={"allocated": {"cpu": "7"}})
            updater.observe_queue(await self.get(QUEUES, "q", view=Queue))
        return response


async def test_write_of_another_client_seen_before_the_response_is_corrected() -> None:
    async with ControllerApi(QUEUES) as api, LateResponseClient(api) as client:
        api.put(QUEUES, "q", spec={"weight": 1})
        updater = StatusUpdater(
            client,
            recorder=None,
            clock=SystemClock(),
            write_intervals=WriteIntervals(queue=0.01),
        )
        client.updater = updater
        running = asyncio.create_task(updater.run())
        updater.set_allocated(await client.get(QUEUES, "q", view=Queue), {"cpu": 2000, "memory": 0})
        await wait_for(lambda: client.updater is None)
        await wait_for(
            lambda: api.objects(QUEUES)["q"]["status"]["allocated"] == {"cpu": "2", "memory": "0"}
        )
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_conflict_with_the_queue_controller_logs_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ControllerApi(PODGROUPS, QUEUES) as api, api.client() as client:
        api.put(QUEUES, "q", spec={"weight": 1})
        updater = StatusUpdater(client, recorder=None, clock=SystemClock())
        writing = asyncio.create_task(updater.run())
        stale = await client.get(QUEUES, "q", view=Queue)
        api.put(QUEUES, "q", status={"state": "Open"})
        updater.set_allocated(stale, {"cpu": 2000, "memory": 0})
        await wait_for(lambda: api.count("PATCH"))
        updater.observe_queue(await client.get(QUEUES, "q", view=Queue))
        await wait_for(lambda: "allocated" in api.objects(QUEUES)["q"]["status"])
        writing.cancel()
        await asyncio.wait([writing])
    assert [line.message for line in caplog.records if line.levelname == "WARNING"] == []


async def test_failed_write_is_logged_with_the_key_of_the_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ControllerApi(PODGROUPS, QUEUES) as api, api.client() as client:
        owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "controller": True}
        api.put(PODGROUPS, "g", metadata={"ownerReferences": [{**owner, "name": "j", "uid": "1"}]})
        updater = StatusUpdater(client, recorder=None, clock=SystemClock())
        writing = asyncio.create_task(updater.run())
        podgroup = await client.get(PODGROUPS, "g", namespace="d", view=PodGroup)
        api.fail(500, "PATCH")
        updater.submit(PodGroupReport("d/g", podgroup, PodGroupStatus("Running")))
        await wait_for(lambda: "status" in api.objects(PODGROUPS)["d/g"])
        writing.cancel()
        await asyncio.wait([writing])
    (line,) = [line for line in caplog.records if line.message == "reconcile failed, requeuing"]
    assert vars(line)["job"] == "d/j"
