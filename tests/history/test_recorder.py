"""The recorder on an API server, and the routes of the history."""

import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.embedded_apiserver import embedded_server
from support.polling import wait_until_true
from support.recorded_jobs import create, details, has_begun, job, run_pod, set_phase
from support.rest import RestClient, rest_at, running_api, sqlite

from batholith.api.history import stream as recorded_stream
from batholith.api.history.tasks import HistorySettings
from batholith.machinery.clock import SystemClock
from batholith.machinery.leader_election import LeaderElectionConfig, LeaderElector, new_identity
from batholith.model import crds
from batholith.model.names import BATCH_JOBS, JOBS, PODS
from batholith.model.recorded import RECORDED, is_recorded
from batholith.store.history import Cursor, HistoryStore, JobFilter
from batholith.wire.history import RecordedJob

HISTORY = HistorySettings(record=True)


@contextlib.asynccontextmanager
async def recorded(directory: Path) -> AsyncIterator[RestClient]:
    async with (
        embedded_server(directory / "cluster", crds=crds.load()) as server,
        server.client() as client,
        running_api(client, sqlite(directory), history=HISTORY) as url,
        rest_at(url, server, client) as rest,
    ):
        await wait_until_true(lambda: has_begun(directory))
        yield rest


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[RestClient]:
    async with recorded(tmp_path) as found:
        yield found


async def wait_recorded(rest: RestClient, uid: str, **expected: object) -> dict[str, Any]:
    """The details of a job, once they have these values."""
    found: dict[str, Any] = {}

    async def has_values() -> bool:
        nonlocal found
        found = await details(rest, uid)
        return bool(found) and all(found[name] == value for name, value in expected.items())

    await wait_until_true(has_values)
    return found


async def test_a_deleted_job_has_a_record_of_its_life(rest: RestClient) -> None:
    created = await create(rest, "train")
    uid = created["metadata"]["uid"]
    await run_pod(rest.client, "train-t-0", created)
    await set_phase(rest.client, "train", "Running", "2030-01-02T12:59:30Z")
    await set_phase(rest.client, "train", "Completed", "2030-01-02T13:00:31Z")
    await rest.client.delete(PODS, "train-t-0", namespace="default", grace_period=0)
    await rest.client.delete(JOBS, "train", namespace="default")
    await wait_recorded(rest, uid, phase="Completed")

    async def is_deleted() -> bool:
        found = await details(rest, uid)
        return found["deleted_at"] is not None and bool(found["resource_seconds"])

    await wait_until_true(is_deleted)
    found = await details(rest, uid)
    assert (found["namespace"], found["name"], found["kind"]) == ("default", "train", "jobs")
    assert (found["queue"], found["user"], found["complete"]) == ("research", "ada", True)
    assert found["reason"] == "is Completed"
    assert found["resource_seconds"] == {"cpu": 30, "memory": 1024 * 60}
    assert [each["phase"] for each in found["phases"]][-2:] == ["Running", "Completed"]
    assert found["phases"][-1]["reason"] == "is Completed"
    assert found["spec"]["queue"] == "research"
    assert [task["name"] for task in found["tasks"]] == ["t"]
    status, usage = await rest.call(
        "GET", "/v1/usage?by=user&from=2030-01-02T12:00:00Z&to=2030-01-02T14:00:00Z"
    )
    assert status == 200
    [series] = usage["series"]
    assert series["name"] == "ada"
    assert [
        (each["start"][11:13], each["resource_seconds"]["cpu"]) for each in series["points"]
    ] == [("12", 15), ("13", 15)]


async def test_jobs_of_batch_v1_are_recorded(rest: RestClient) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "b"}]}}
    body = {"metadata": {"name": "pi"}, "spec": {"template": template}}
    created = await rest.client.create(BATCH_JOBS, body, namespace="default", view=dict)
    found = await wait_recorded(rest, created["metadata"]["uid"], phase="Pending")
    assert found["kind"] == "batchjobs"
    _, page = await rest.call("GET", "/v1/namespaces/default/batchjobs/pi/history")
    assert [each["uid"] for each in page["items"]] == [created["metadata"]["uid"]]


async def test_a_finished_job_with_a_ttl_is_annotated(rest: RestClient) -> None:
    await create(rest, "brief", ttlSecondsAfterFinished=0)
    await create(rest, "kept")
    for name in ("kept", "brief"):
        await set_phase(rest.client, name, "Completed", "2030-01-02T13:00:31Z")

    async def annotated() -> bool:
        found = await rest.client.get(JOBS, "brief", namespace="default", view=dict)
        annotations = found["metadata"].get("annotations", {})
        return is_recorded(annotations, "2030-01-02T13:00:31Z")

    await wait_until_true(annotated)
    kept = await rest.client.get(JOBS, "kept", namespace="default", view=dict)
    assert RECORDED not in kept["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("late_after", "reason"), [(math.inf, ""), (0.0, "the deletion was observed late")]
)
async def test_changes_during_a_restart_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late_after: float, reason: str
) -> None:
    """The watch resumes from its stored position: a job of that time has a record.

    The time of its deletion is not known after a longer interruption.
    """
    monkeypatch.setattr(recorded_stream, "LATE_AFTER", late_after)
    async with (
        embedded_server(tmp_path / "cluster", crds=crds.load()) as server,
        server.client() as client,
    ):
        async with (
            running_api(client, sqlite(tmp_path), history=HISTORY) as url,
            rest_at(url, server, client) as rest,
        ):
            first = await create(rest, "first")
            await wait_recorded(rest, first["metadata"]["uid"], phase="Pending")
            await wait_until_true(lambda: has_begun(tmp_path))
        second = await create(rest, "second")
        await set_phase(client, "second", "Running", "2030-01-02T12:59:30Z")
        await run_pod(client, "pod", second)
        await client.delete(PODS, "pod", namespace="default", grace_period=0)
        await client.delete(JOBS, "second", namespace="default")
        async with (
            running_api(client, sqlite(tmp_path), history=HISTORY) as url,
            rest_at(url, server, client) as rest,
        ):
            uid = second["metadata"]["uid"]
            found = await wait_recorded(rest, uid, resource_seconds={"cpu": 30, "memory": 61440})
            assert found["deleted_at"] is not None
            assert (found["phase"], found["complete"]) == ("Running", not reason)
            assert found["incomplete_reason"] == reason
            third = (await create(rest, "third"))["metadata"]["uid"]
            await wait_recorded(rest, third, phase="Pending", complete=True)


async def test_another_replica_records_once_the_leader_has_ended(tmp_path: Path) -> None:
    async with (
        embedded_server(tmp_path / "cluster", crds=crds.load()) as server,
        server.client() as client,
    ):
        config = LeaderElectionConfig(name="batholith-history", namespace="default")

        def replica() -> HistorySettings:
            config_ = replace(config, identity=new_identity())
            clock = SystemClock()
            return HistorySettings(
                record=True, new_elector=lambda: LeaderElector(client, config_, clock=clock)
            )

        store = sqlite(tmp_path)
        async with contextlib.AsyncExitStack() as first:
            await first.enter_async_context(running_api(client, store, history=replica()))
            await wait_until_true(lambda: has_begun(tmp_path))
            async with (
                running_api(client, store, history=replica()) as url,
                rest_at(url, server, client) as rest,
            ):
                created = await create(rest, "first")
                await wait_recorded(rest, created["metadata"]["uid"], phase="Pending")
                await first.aclose()  # it releases the Lease
                created = await create(rest, "second")
                found = await wait_recorded(rest, created["metadata"]["uid"], phase="Pending")
                assert found["complete"]


async def test_the_history_of_a_name_has_a_job_that_is_not_recorded_yet(tmp_path: Path) -> None:
    path = "/v1/namespaces/default/jobs/train/history"
    async with (
        embedded_server(tmp_path / "cluster", crds=crds.load()) as server,
        server.client() as client,
    ):
        async with (
            running_api(client, sqlite(tmp_path), history=HISTORY) as url,
            rest_at(url, server, client) as rest,
        ):
            recorded = (await create(rest, "train"))["metadata"]["uid"]
            await wait_recorded(rest, recorded, phase="Pending")
            await client.delete(JOBS, "train", namespace="default")
        created = await client.create(JOBS, job("train"), namespace="default", view=dict)
        uid = created["metadata"]["uid"]
        async with (
            running_api(client, sqlite(tmp_path), history=HistorySettings()) as url,
            rest_at(url, server, client) as rest,
        ):
            status, page = await rest.call("GET", path)
            assert status == 200
            assert [each["uid"] for each in page["items"]] == [uid, recorded]
            assert page["items"][0]["phase"] == "Pending"
            assert page["items"][0]["incomplete_reason"] == "the job is not recorded yet"
            _, first = await rest.call("GET", f"{path}?limit=1")
            _, second = await rest.call("GET", f"{path}?limit=1&cursor={first['next_cursor']}")
            assert [each["uid"] for each in (*first["items"], *second["items"])] == [uid, recorded]
            assert second["next_cursor"] is None


async def test_the_history_of_a_name_has_a_job_that_is_deleted_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deletion may be recorded later."""
    path = "/v1/namespaces/default/jobs"
    async with (
        embedded_server(tmp_path / "cluster", crds=crds.load()) as server,
        server.client() as client,
        running_api(client, sqlite(tmp_path), history=HistorySettings()) as url,
        rest_at(url, server, client) as rest,
    ):

        async def is_cached() -> bool:
            _, page = await rest.call("GET", path)
            return bool(page["items"])

        async def is_absent() -> bool:
            return not await is_cached()

        async def delete_and_read(
            self: HistoryStore,
            which: JobFilter,
            *,
            limit: int,
            now: datetime,
            after: Cursor | None = None,
        ) -> tuple[Sequence[RecordedJob], Cursor | None]:
            await client.delete(JOBS, "train", namespace="default")
            await wait_until_true(is_absent)
            return await read(self, which, limit=limit, now=now, after=after)

        read = HistoryStore.jobs
        monkeypatch.setattr(HistoryStore, "jobs", delete_and_read)
        uid = (await create(rest, "train"))["metadata"]["uid"]
        await wait_until_true(is_cached)
        _, page = await rest.call("GET", f"{path}/train/history")
        assert [each["uid"] for each in page["items"]] == [uid]


async def test_history_is_listed_in_pages_with_filters(rest: RestClient) -> None:
    uids = []
    for number in range(5):
        created = await create(rest, f"job-{number}")
        uids.append(created["metadata"]["uid"])
        at = f"2030-01-02T13:00:0{number}Z"
        await set_phase(rest.client, f"job-{number}", "Failed" if number % 2 else "Completed", at)
    for uid, number in zip(uids, range(5), strict=True):
        await wait_recorded(rest, uid, phase="Failed" if number % 2 else "Completed")
    names, cursor = [], ""
    while cursor is not None:
        query = f"&cursor={cursor}" if cursor else ""
        status, page = await rest.call("GET", f"/v1/history/jobs?limit=2{query}")
        assert status == 200, page
        names += [each["name"] for each in page["items"]]
        cursor = page["next_cursor"]
    assert names == [f"job-{number}" for number in (4, 3, 2, 1, 0)]
    prefix = "/v1/namespaces/default/history/jobs?"
    for query, expected in {
        "phase=Failed": [3, 1],
        "phase=Failed&phase=Completed&name=job-2": [2],
        "queue=research&user=ada&kind=jobs&from=2030-01-02T13:00:03Z": [4, 3],
        "to=2030-01-02T13:00:01Z": [0],
        "user=eve": [],
        "kind=batchjobs": [],
    }.items():
        _, page = await rest.call("GET", prefix + query)
        assert [each["name"] for each in page["items"]] == [f"job-{n}" for n in expected], query
    _, page = await rest.call("GET", "/v1/namespaces/other/history/jobs")
    assert page["items"] == []


INVALID = [
    "history/jobs?cursor=x",
    "history/jobs?cursor=WyJhIiwgWyJiIiwgImMiXV0=",
    "history/jobs?limit=0",
    "history/jobs?from=yesterday",
    "history/jobs?kind=pods",
    "history/jobs?phase=Dancing",
    "history/jobs?user=%00",
    "history/jobs?queue=%00",
    "history/jobs/%00",
    "usage",
    "usage?by=colour",
    "usage?by=queue&from=2030-01-02T12:00:00Z&to=2026-01-01T12:00:00Z",
    "usage?by=queue&from=2020-01-02T12:00:00Z&to=2026-01-01T12:00:00Z",
    "usage?by=user&user=%00",
    "usage?by=user&from=0001-01-01T00:00:00Z&to=9999-12-31T23:59:59Z",
]


async def test_invalid_queries_are_rejected(rest: RestClient) -> None:
    for query in INVALID:
        status, body = await rest.call("GET", f"/v1/{query}")
        assert status == 422, (query, body)
