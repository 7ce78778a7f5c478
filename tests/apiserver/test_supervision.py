"""Background tasks of the API server continue after a failure, and the failure is counted."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.embedded_apiserver import (
    MAPS,
    EmbeddedServer,
    config_map,
    embedded_server,
    wait_deleted,
)
from support.polling import wait_until_true

from batholith.kube import supervision
from batholith.local.apiserver.controllers import base
from batholith.local.apiserver.controllers.garbage_collector import GarbageCollector
from batholith.local.apiserver.controllers.namespaces import NamespaceController
from batholith.local.apiserver.storage.object_store import ObjectStore
from batholith.local.apiserver.storage.watch import Watcher

NAMESPACES = "/api/v1/namespaces"
Failing = Callable[[object, str, BaseException], None]


@pytest.fixture
def fail_once(monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Let the next call of a method fail."""

    def fail(owner: object, name: str, error: BaseException) -> None:
        true = getattr(owner, name)
        failed: list[bool] = []

        def method(*args: Any, **options: Any) -> Any:
            if not failed:
                failed.append(True)
                raise error
            return true(*args, **options)

        monkeypatch.setattr(owner, name, method)

    return fail


async def restarts(server: EmbeddedServer, task: str) -> bool:
    text = (await server.request("GET", "/metrics")).body
    return f'batholith_task_restarts_total{{task="{task}"}}' in text


@pytest.mark.parametrize("error", [RuntimeError("boom"), asyncio.CancelledError()])
async def test_the_store_continues_to_write(
    tmp_path: Path, fail_once: Failing, error: BaseException
) -> None:
    supervision.TASK_RESTARTS.clear()
    async with embedded_server(tmp_path) as server:
        fail_once(ObjectStore, "_write_group", error)
        await server.create(MAPS, config_map("a"))
        await server.create(MAPS, config_map("b"))
        assert await restarts(server, "store")


@pytest.mark.parametrize("error", [RuntimeError("boom"), asyncio.CancelledError()])
async def test_controllers_continue(
    tmp_path: Path, fail_once: Failing, error: BaseException
) -> None:
    supervision.TASK_RESTARTS.clear()
    fail_once(base, "run_workers", error)
    async with embedded_server(tmp_path) as server:
        await server.create(NAMESPACES, {"metadata": {"name": "n"}})
        await server.request("DELETE", f"{NAMESPACES}/n")
        await wait_deleted(server, NAMESPACES, "n")
        assert supervision.TASK_RESTARTS.total() == 1


async def test_a_controller_that_missed_a_change_enqueues_everything(
    tmp_path: Path, fail_once: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "RESYNC_DELAY", 0.0)
    supervision.TASK_RESTARTS.clear()
    async with embedded_server(tmp_path) as server:
        owner = await server.create(MAPS, config_map("owner"))
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner"}
        reference["uid"] = owner["metadata"]["uid"]
        await server.create(MAPS, {"metadata": {"name": "d", "ownerReferences": [reference]}})
        fail_once(GarbageCollector, "on_event", RuntimeError("boom"))
        fail_once(NamespaceController, "on_event", RuntimeError("boom"))
        await server.request("DELETE", f"{MAPS}/owner")
        await wait_deleted(server, MAPS, "d")
        for task in ("garbage", "namespaces"):
            assert await restarts(server, task)


async def test_a_failing_watcher_ends_only_its_own_watch(
    tmp_path: Path, fail_once: Failing
) -> None:
    async with (
        embedded_server(tmp_path) as server,
        server.watch(f"{MAPS}?watch=1&labelSelector=a=b") as first,
        server.watch(f"{MAPS}?watch=1&labelSelector=a=b") as second,
    ):
        resource_store = next(
            each
            for each in server.running.app.handlers.writer.store.resource_stores()
            if each.resource.plural == "configmaps"
        )

        async def watched() -> bool:
            return len(resource_store.broadcaster) == 2

        await wait_until_true(watched)
        fail_once(Watcher, "enqueue", RuntimeError("boom"))
        await server.create(MAPS, config_map("x", a="b"))
        ended = await first.remaining()
        assert ended == []
        assert (await second.next())["object"]["metadata"]["name"] == "x"
