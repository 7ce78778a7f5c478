"""What is written of what ought to stand, and when."""

import asyncio
from typing import Any

import pytest
from support.fake_apiserver import FakeApi
from support.polling import wait_for

from batholith.kube.client.client import Client
from batholith.machinery.change_rate import ChangeRate
from batholith.machinery.clock import SystemClock
from batholith.model.names import PODGROUPS, QUEUES
from batholith.model.podgroup import PodGroup, PodGroupCondition, PodGroupStatus
from batholith.model.queue import Queue
from batholith.scheduler.writers.podgroup_status import READY, SCHEDULED, PodGroupReport
from batholith.scheduler.writers.status_updater import StatusUpdater, WriteIntervals


@pytest.mark.parametrize("crowd", [False, True])
async def test_in_a_crowd_phases_are_written_at_once_and_numbers_later(
    monkeypatch: pytest.MonkeyPatch, crowd: bool
) -> None:
    monkeypatch.setattr(ChangeRate, "quiet_in", lambda _: 1000.0 if crowd else 0.0)
    pauses = WriteIntervals(podgroup=0.0, podgroup_max=1000.0)
    async with FakeApi() as api, Client(api.credentials, user_agent="t") as client:
        scribe = StatusUpdater(client, recorder=None, clock=SystemClock(), write_intervals=pauses)

        def standing() -> dict[str, Any]:
            status: dict[str, Any] = api.objects(PODGROUPS)["d/g"].get("status", {})
            return status

        async def tell(**status: Any) -> None:
            group = await client.get(PODGROUPS, "g", namespace="d", view=PodGroup)
            scribe.submit(PodGroupReport("d/g", group, PodGroupStatus(**status)), {})

        api.put(PODGROUPS, "g")
        writing = asyncio.create_task(scribe.run())
        await tell(phase="Running")
        await wait_for(lambda: standing().get("phase") == "Running")
        await tell(phase="Running", running=1)
        if crowd:
            await asyncio.sleep(0.1)  # one that does not wait would have written by now
            assert "running" not in standing()
        else:
            await wait_for(lambda: standing().get("running") == 1)
        await tell(phase="Completed", running=2)
        await wait_for(lambda: standing().get("phase") == "Completed")
        assert standing()["running"] == 2
        writing.cancel()
        await asyncio.wait([writing])


async def test_that_all_have_places_is_said_along_with_the_phase() -> None:
    async with FakeApi() as api, Client(api.credentials, user_agent="t") as client:
        pauses = WriteIntervals(podgroup=1000.0, podgroup_max=1000.0)
        scribe = StatusUpdater(client, recorder=None, clock=SystemClock(), write_intervals=pauses)
        writing = asyncio.create_task(scribe.run())
        api.put(PODGROUPS, "g")
        group = await client.get(PODGROUPS, "g", namespace="d", view=PodGroup)
        placed = PodGroupCondition(type=SCHEDULED, status="True", reason=READY)
        for phase, conditions in (("Inqueue", ()), ("Inqueue", (placed,)), ("Running", (placed,))):
            scribe.submit(PodGroupReport("d/g", group, PodGroupStatus(phase, conditions)), {})
            if not conditions:
                await wait_for(lambda: "status" in api.objects(PODGROUPS)["d/g"])
        await wait_for(lambda: api.objects(PODGROUPS)["d/g"]["status"]["phase"] == "Running")
        said = api.objects(PODGROUPS)["d/g"]["status"]["conditions"]
        assert [each["type"] for each in said] == [SCHEDULED]
        assert api.count("PATCH") == 2
        writing.cancel()
        await asyncio.wait([writing])


class SlowWriteClient(Client):
    """A client whose status write of one PodGroup does not return before it is released."""

    def __init__(self, api: FakeApi, name: str) -> None:
        super().__init__(api.credentials, user_agent="test")
        self.released = asyncio.Event()
        self._name = name

    async def _send(self, method: str, path: str, *rest: Any) -> bytes:
        if method == "PATCH" and path.endswith(f"/podgroups/{self._name}"):
            await self.released.wait()
        return await super()._send(method, path, *rest)


async def test_a_slow_write_does_not_delay_other_statuses() -> None:
    """With a shard per worker some of the other groups would wait behind the slow one."""
    async with FakeApi() as api, SlowWriteClient(api, "g-0") as client:
        scribe = StatusUpdater(client, recorder=None, clock=SystemClock())
        writing = asyncio.create_task(scribe.run())
        names = [f"g-{number}" for number in range(64)]
        for name in names:
            api.put(PODGROUPS, name)
            group = await client.get(PODGROUPS, name, namespace="d", view=PodGroup)
            scribe.submit(PodGroupReport(f"d/{name}", group, PodGroupStatus(phase="Inqueue")), {})

        def written() -> set[str]:
            groups = api.objects(PODGROUPS)
            return {name for name in names if "status" in groups[f"d/{name}"]}

        await wait_for(lambda: written() == set(names) - {"g-0"})
        client.released.set()
        await wait_for(lambda: written() == set(names))
        writing.cancel()
        await asyncio.wait([writing])


class OvertakenClient(Client):
    """A client whose first answer comes after the word of what another wrote right behind it."""

    def __init__(self, api: FakeApi) -> None:
        super().__init__(api.credentials, user_agent="test")
        self.api = api
        self.updater: StatusUpdater | None = None

    async def patch(self, *args: Any, **kwargs: Any) -> Any:
        answer = await super().patch(*args, **kwargs)
        scribe, self.updater = self.updater, None
        if scribe is not None:
            self.api.put(QUEUES, "q", status={"allocated": {"cpu": "7"}})
            scribe.observe_queue(await self.get(QUEUES, "q", view=Queue))
        return answer


async def test_anothers_word_that_comes_before_our_own_answer_is_mended() -> None:
    async with FakeApi() as api, OvertakenClient(api) as client:
        api.put(QUEUES, "q", spec={"weight": 1})
        scribe = StatusUpdater(
            client,
            recorder=None,
            clock=SystemClock(),
            write_intervals=WriteIntervals(queue=0.01),
        )
        client.updater = scribe
        running = asyncio.create_task(scribe.run())
        scribe.set_allocated(await client.get(QUEUES, "q", view=Queue), {"cpu": 2000, "memory": 0})
        await wait_for(lambda: client.updater is None)
        await wait_for(
            lambda: api.objects(QUEUES)["q"]["status"]["allocated"] == {"cpu": "2", "memory": "0"}
        )
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_that_a_queue_has_a_second_writer_is_no_reason_to_warn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeApi() as api, Client(api.credentials, user_agent="t") as client:
        api.put(QUEUES, "q", spec={"weight": 1})
        scribe = StatusUpdater(client, recorder=None, clock=SystemClock())
        writing = asyncio.create_task(scribe.run())
        stale = await client.get(QUEUES, "q", view=Queue)
        api.put(QUEUES, "q", status={"state": "Open"})
        scribe.set_allocated(stale, {"cpu": 2000, "memory": 0})
        await wait_for(lambda: api.count("PATCH"))
        scribe.observe_queue(await client.get(QUEUES, "q", view=Queue))
        await wait_for(lambda: "allocated" in api.objects(QUEUES)["q"]["status"])
        writing.cancel()
        await asyncio.wait([writing])
    assert [line.message for line in caplog.records if line.levelname == "WARNING"] == []


async def test_what_goes_wrong_about_a_jobs_gang_is_told_by_the_jobs_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeApi() as api, Client(api.credentials, user_agent="t") as client:
        owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "controller": True}
        api.put(PODGROUPS, "g", metadata={"ownerReferences": [{**owner, "name": "j", "uid": "1"}]})
        scribe = StatusUpdater(client, recorder=None, clock=SystemClock())
        writing = asyncio.create_task(scribe.run())
        group = await client.get(PODGROUPS, "g", namespace="d", view=PodGroup)
        api.inject_fault(500, method="PATCH")
        scribe.submit(PodGroupReport("d/g", group, PodGroupStatus("Running")), {})
        await wait_for(lambda: "status" in api.objects(PODGROUPS)["d/g"])
        writing.cancel()
        await asyncio.wait([writing])
    (line,) = [line for line in caplog.records if line.message == "reconcile failed, requeuing"]
    assert vars(line)["job"] == "d/j"
