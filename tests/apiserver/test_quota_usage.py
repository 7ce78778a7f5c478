"""The usage of ResourceQuotas in the embedded API server: exact after anything that happens."""

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.api_servers import merge_patch
from support.embedded_apiserver import (
    MERGE,
    EmbeddedServer,
    definition,
    embedded_server,
    foo,
    pod,
)
from support.polling import wait_until_true
from support.quotas import NAMESPACE, QuotaServer

from batholith.local.apiserver.admission import quota_usage, quotas
from batholith.local.apiserver.admission.quotas import QuotaUsage
from batholith.local.apiserver.kinds.info import OFFLOAD_THRESHOLD
from batholith.local.apiserver.storage.sqlite import SqliteStore
from batholith.model import times
from batholith.model.names import RESOURCEQUOTAS
from batholith.model.quantity import ZERO

Json = dict[str, Any]
NOW = times.parse("2026-01-01T12:00:00Z")
POD = ("", "pods")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with embedded_server(tmp_path) as started:
        yield started


@pytest.fixture
async def limited(server: EmbeddedServer) -> QuotaServer:
    found = QuotaServer(server)
    await found.prepare()
    return found


def stored(name: str, cpu: str, phase: str = "Pending", **metadata: Any) -> Json:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    return {
        "metadata": {"name": name, **metadata},
        "spec": {"containers": [container]},
        "status": {"phase": phase},
    }


def amounts(quota: QuotaUsage) -> dict[str, int]:
    return {name: amount.nanos for name, amount in quota.used.items() if amount != ZERO}


CHANGES = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.one_of(
            st.none(),
            st.tuples(
                st.sampled_from(("100m", "1", "1500m", "2k")),
                st.sampled_from(("Pending", "Running", "Failed")),
            ),
        ),
    ),
    max_size=40,
)


@given(CHANGES)
def test_the_usage_is_the_sum_of_what_exists(changes: list[tuple[int, Any]]) -> None:
    """INV-OW-7."""
    spec = {"hard": {"pods": "9", "requests.cpu": "9", "count/pods": "9", "services": "9"}}
    quota, existing = QuotaUsage("q", spec), dict[str, Json]()
    for number, change in changes:
        name = f"p{number}"
        existing.pop(name, None)
        if change is not None:
            existing[name] = stored(name, *change)
        quota.charge(POD, name, existing.get(name), NOW)
        counted = QuotaUsage("q", spec)
        for each, obj in existing.items():
            counted.charge(POD, each, obj, NOW)
        assert amounts(quota) == amounts(counted)


def test_a_pod_whose_deletion_is_overdue_is_counted_as_an_object_only() -> None:
    quota = QuotaUsage("q", {"hard": {"pods": "9", "requests.cpu": "9", "count/pods": "9"}})
    deleted = stored(
        "p", "1", deletionTimestamp="2026-01-01T12:00:30Z", deletionGracePeriodSeconds=30
    )
    quota.charge(POD, "p", deleted, NOW)
    assert (str(quota.used["pods"]), str(quota.used["requests.cpu"])) == ("1", "1")
    due = NOW + timedelta(seconds=60)
    assert (quota.next_expiry, quota.expired(due)) == (due, [])
    later = due + timedelta(seconds=1)
    assert quota.expired(later) == [(POD, "p")]
    quota.charge(POD, "p", deleted, later)
    assert {name: str(amount) for name, amount in quota.used.items()} == {
        "pods": "0", "requests.cpu": "0", "count/pods": "1",
    }  # fmt: skip
    assert quota.next_expiry is None


def test_a_stored_object_that_cannot_be_counted_uses_nothing() -> None:
    quota = QuotaUsage("q", {"hard": {"requests.cpu": "9"}})
    quota.charge(POD, "p", stored("p", "many"), NOW)
    assert amounts(quota) == {}


async def test_a_restart_counts_what_exists(tmp_path: Path) -> None:
    """INV-OW-7."""
    async with embedded_server(tmp_path) as first:
        limited = QuotaServer(first)
        await limited.prepare()
        await limited.limit("few", {"pods": "2"})
        await limited.server.create(limited.pods, pod("p"))
    async with embedded_server(tmp_path) as second:
        limited = QuotaServer(second)
        await limited.server.create(limited.pods, pod("q"))
        assert "used: pods=2" in await limited.message(limited.pods, pod("r"))
        await limited.wait_used("few", pods="2")


async def test_a_status_that_somebody_changed_has_no_effect_and_is_corrected(
    limited: QuotaServer,
) -> None:
    await limited.limit("few", {"pods": "1"})
    path = RESOURCEQUOTAS.path(NAMESPACE, "few")
    changed = {"status": {"hard": {"pods": "9"}, "used": {"pods": "0"}}}
    await limited.server.create(limited.pods, pod("p"))
    await merge_patch(limited.server, f"{path}/status", changed)
    assert "exceeded quota: few" in await limited.message(limited.pods, pod("q"))
    await limited.wait_used("few", pods="1")
    assert (await limited.server.get(path))["status"]["hard"] == {"pods": "1"}


async def test_large_objects_are_checked_when_they_are_stored(limited: QuotaServer) -> None:
    """INV-OW-7: they are planned in threads, at the same time."""
    await limited.limit("few", {"pods": "2"})
    padding = {"annotations": {"padding": "x" * OFFLOAD_THRESHOLD}}
    bodies = [{**pod(name), "metadata": {"name": name, **padding}} for name in "abcde"]
    responses = await asyncio.gather(*(limited.create(limited.pods, body) for body in bodies))
    assert sorted(response.status for response in responses) == [201] * 2 + [403] * 3
    await limited.wait_used("few", pods="2")


async def test_a_write_that_is_not_stored_is_not_counted(
    limited: QuotaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-OW-7."""
    await limited.limit("few", {"pods": "1"})

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk failed")

    with monkeypatch.context() as patched:
        patched.setattr(SqliteStore, "commit", fail)
        assert (await limited.create(limited.pods, pod("p"))).status == 500
    assert (await limited.create(limited.pods, pod("p"))).status == 201
    await limited.wait_used("few", pods="1")


async def test_writes_in_namespaces_without_quotas_count_nothing(
    limited: QuotaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limited.limit("few", {"pods": "9"})
    counted = []
    original = quota_usage.usage

    def observed(*arguments: Any) -> Any:
        counted.append(arguments[1]["metadata"].get("namespace"))
        return original(*arguments)

    monkeypatch.setattr(quotas, "usage", observed)
    monkeypatch.setattr(quotas, "_content", lambda key, entry: pytest.fail("decoded"))
    elsewhere = "/api/v1/namespaces/default/pods"
    await limited.server.create(elsewhere, pod("p"))
    await merge_patch(limited.server, f"{elsewhere}/p", {"metadata": {"labels": {"a": "b"}}})
    await limited.server.request("DELETE", f"{elsewhere}/p")
    assert counted == []
    monkeypatch.undo()
    monkeypatch.setattr(quotas, "usage", observed)
    await limited.server.create(limited.pods, pod("p"))
    assert counted == [NAMESPACE] * 2  # checked, and counted


async def test_objects_of_a_kind_that_is_defined_later_are_counted(limited: QuotaServer) -> None:
    await limited.limit("few", {"count/foos.ex.io": "1", "pods": "1"})
    await limited.wait_used("few", pods="0")
    await limited.server.install_crds(definition())
    await limited.wait_amounts("few", {"pods": "0", "count/foos.ex.io": "0"})
    path = f"/apis/ex.io/v1/namespaces/{NAMESPACE}/foos"
    assert await limited.message(path, foo("a")) == ""
    assert "used: count/foos.ex.io=1" in await limited.message(path, foo("b"))
    await limited.server.request("DELETE", f"{path}/a")
    await limited.wait_amounts("few", {"pods": "0", "count/foos.ex.io": "0"})
    assert await limited.message(path, foo("b")) == ""


async def test_random_concurrent_writes_stay_within_the_limits(limited: QuotaServer) -> None:
    """INV-OW-7."""
    await limited.limit("few", {"pods": "5", "requests.cpu": "4"})
    rng = random.Random(1)

    async def step() -> None:
        path, name = limited.pods, f"p{rng.randrange(12)}"
        choice = rng.random()
        if choice < 0.6:
            body = pod(name)
            body["spec"]["containers"][0]["resources"] = {
                "requests": {"cpu": rng.choice(("500m", "1", "1500m"))}
            }
            await limited.create(path, body)
        elif choice < 0.8:
            await limited.server.request("DELETE", f"{path}/{name}?gracePeriodSeconds=0")
        else:
            status = {"status": {"phase": rng.choice(("Failed", "Running", "Succeeded"))}}
            await limited.server.request(
                "PATCH", f"{path}/{name}/status", status, content_type=MERGE
            )

    for _ in range(8):
        await asyncio.gather(*(step() for _ in range(12)))
        existing = (await limited.server.get(limited.pods))["items"]
        counted = QuotaUsage("few", {"hard": {"pods": "5", "requests.cpu": "4"}})
        for each in existing:
            counted.charge(POD, each["metadata"]["name"], each, NOW)

        async def is_written(counted: QuotaUsage = counted) -> bool:
            used = await limited.used("few")
            return {name: amount for name, amount in used.items() if amount} == amounts(counted)

        await wait_until_true(is_written)
