"""Concurrent jobs: whose pods are created first."""

import asyncio
from typing import Any

from support.controller_api import ControllerApi
from support.jobs import task
from support.polling import wait_for
from support.running_controller import running

from batholith.job_ctrl.controller import JobController
from batholith.job_ctrl.settings import JobSettings
from batholith.kube.client.client import Client
from batholith.kube.errors import ForbiddenError
from batholith.machinery.testing import FakeClock
from batholith.model.names import COMMANDS, JOBS, PODGROUPS, PODS

KINDS = (JOBS, PODGROUPS, COMMANDS)

ONE_BY_ONE = JobSettings(max_writes_in_flight=1, workers=16)


class DelayedPodClient(Client):
    """A client whose pod of a number, counted from one, is in flight until it is released."""

    def __init__(self, api: ControllerApi, number: int) -> None:
        super().__init__(api.credentials, user_agent="test")
        self.held, self.released = asyncio.Event(), asyncio.Event()
        self._left = number

    async def _send(self, method: str, path: str, *rest: Any) -> bytes:
        if method == "POST" and path.endswith("/pods"):
            self._left -= 1
            if not self._left:
                self.held.set()
                await self.released.wait()
        return await super()._send(method, path, *rest)


class QuotaClient(Client):
    """A client to whom the server refuses pods while it is *full*; notes how many are asked for
    at the same time."""

    def __init__(self, api: ControllerApi) -> None:
        super().__init__(api.credentials, user_agent="test")
        self.quota_full = False
        self.in_flight_sizes: list[int] = []
        self._in_flight = 0

    async def _send(self, method: str, path: str, *rest: Any) -> bytes:
        if not (self.quota_full and method == "POST" and path.endswith("/pods")):
            return await super()._send(method, path, *rest)
        self.in_flight_sizes += [] if self._in_flight else [0]
        self.in_flight_sizes[-1] += 1
        self._in_flight += 1
        await asyncio.sleep(0.01)
        self._in_flight -= 1
        raise ForbiddenError("exceeded quota", status=403, reason="Forbidden")


def submit(api: ControllerApi, name: str, replicas: int) -> None:
    meta = {"name": name, "namespace": "d", "uid": f"uid-{name}", "generation": 1}
    spec: dict[str, Any] = {
        "minAvailable": replicas,
        "queue": "default",
        "schedulerName": "volcano",
        "tasks": [task(replicas=replicas)],
    }
    api.put(JOBS, name, metadata=meta, spec=spec)


def group_of(name: str) -> str:
    return f"{name}-uid-{name}"


def state(api: ControllerApi, name: str) -> dict[str, str]:
    """Phase, reason and message of a job."""
    job = api.objects(JOBS)[f"d/{name}"]
    message: dict[str, str] = job.get("status", {}).get("state", {})
    return message


def created_pods(api: ControllerApi) -> list[str]:
    """The jobs of the created pods, pod by pod."""
    changes = [each for each in api.changes if each.resource == PODS and each.type == "ADDED"]
    return [each.object["metadata"]["name"].partition("-")[0] for each in changes]


async def creation_order(first: int, second: int, *, after: int) -> list[str]:
    """The jobs of the created pods if *second* is submitted after *after* pods of *first*.

    It is submitted a tenth of a second later: a job that waits for seconds precedes smaller ones.
    """
    clock = FakeClock()
    async with ControllerApi(*KINDS) as api, DelayedPodClient(api, after) as client:
        controller = JobController(client, settings=ONE_BY_ONE, clock=clock)
        async with running(controller):
            for name, replicas in (("first", first), ("second", second)):
                submit(api, name, replicas)
            await wait_for(lambda: len(api.objects(PODGROUPS)) == 2)
            api.put(PODGROUPS, group_of("first"), status={"phase": "Inqueue"})
            await client.held.wait()
            before = controller.statistics()["waiting_writes"]
            await clock.advance(0.1)
            api.put(PODGROUPS, group_of("second"), status={"phase": "Inqueue"})
            await wait_for(lambda: controller.statistics()["waiting_writes"] > before)
            client.released.set()
            await wait_for(lambda: api.created(PODS) == first + second)
        return created_pods(api)


async def test_of_two_alike_the_first_is_complete_first() -> None:
    """A complete gang starts; two incomplete gangs wait for each other."""
    pods = await creation_order(64, 64, after=3)
    until_complete = pods[: len(pods) - pods[::-1].index("first")]
    # The batches of a job grow from one; the other job writes between two batches.
    assert until_complete.count("second") <= 7


async def test_small_job_overtakes_the_rest_of_a_large_one() -> None:
    pods = await creation_order(400, 4, after=200)
    until_complete = pods[: len(pods) - pods[::-1].index("second")]
    assert until_complete.count("first") <= 204


async def test_slow_start_begins_larger_after_success_until_a_rejection() -> None:
    async with (
        ControllerApi(*KINDS) as api,
        QuotaClient(api) as client,
        running(JobController(client)),
    ):
        for name in ("first", "second"):
            submit(api, name, 9)
        await wait_for(lambda: len(api.objects(PODGROUPS)) == 2)
        api.put(PODGROUPS, group_of("first"), status={"phase": "Inqueue"})
        await wait_for(lambda: api.created(PODS) == 9)
        client.quota_full = True
        api.put(PODGROUPS, group_of("second"), status={"phase": "Inqueue"})
        await wait_for(lambda: len(client.in_flight_sizes) >= 3)
        await wait_for(lambda: state(api, "second").get("message") == "exceeded quota")
        assert state(api, "second")["reason"] == "FailedCreate"
        client.quota_full = False
        await wait_for(lambda: api.created(PODS) == 18)
        await wait_for(lambda: "reason" not in state(api, "second"))
    assert client.in_flight_sizes[:2] == [8, 1]


async def test_rejection_is_dropped_from_the_status_when_no_longer_relevant() -> None:
    async with (
        ControllerApi(*KINDS) as api,
        QuotaClient(api) as client,
        running(JobController(client)),
    ):
        submit(api, "j", 2)
        await wait_for(lambda: len(api.objects(PODGROUPS)) == 1)
        api.put(PODGROUPS, group_of("j"), status={"phase": "Inqueue"})
        await wait_for(lambda: api.created(PODS) == 2)
        client.quota_full = True
        wanted = api.objects(JOBS)["d/j"]["spec"]
        for replicas, generation in ((3, 2), (2, 3)):
            spec = {**wanted, "tasks": [task(replicas=replicas)]}
            api.put(JOBS, "j", metadata={"generation": generation}, spec=spec)
            await wait_for(lambda: ("reason" in state(api, "j")) == (replicas == 3))  # noqa: B023
