"""Logs of a job's pods over REST, with pods that run, on both API servers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from support.agent import container
from support.api_servers import ServerFactory, merge_patch
from support.job_pods import RestSession, in_own_namespace, logs_cluster
from support.polling import wait_for

from batholith.api.logs import merged as merged_logs
from batholith.kube.client.client import Client
from batholith.kube.errors import ConnectionLostError
from batholith.model.names import JOBS, PODS

Json = dict[str, Any]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.process]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    servers: ServerFactory, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RestSession]:
    """One server, agent and REST API for all tests of this module."""
    async with logs_cluster(servers, tmp_path_factory.mktemp("world")) as created:
        yield created


@pytest_asyncio.fixture(loop_scope="module")
async def rest(shared: RestSession, monkeypatch: pytest.MonkeyPatch) -> RestSession:
    monkeypatch.setattr(merged_logs, "FINISH_INTERVAL", 0.1)
    return await in_own_namespace(shared)


def shell(script: str, *, name: str = "c") -> Json:
    return container("sh", "-c", script, name=name)


async def test_log_of_a_pod_with_all_options(rest: RestSession) -> None:
    await rest.create_job()
    await rest.create_pod("w", 0, shell("echo one; echo two; echo three"))
    await rest.cluster.phase("train-w-0", "Succeeded")
    log = f"{rest.root}/jobs/train/pods/train-w-0/log"
    assert await rest.text(log) == "one\ntwo\nthree\n"
    assert await rest.text(f"{log}?follow=true") == "one\ntwo\nthree\n"
    assert await rest.text(f"{log}?tail_lines=1") == "three\n"
    assert await rest.text(f"{log}?tail_lines=0") == ""
    assert await rest.text(f"{log}?limit_bytes=5") == "one\nt"
    assert await rest.text(f"{log}?since_seconds=3600&container=c") == "one\ntwo\nthree\n"
    stamped = (await rest.text(f"{log}?timestamps=true&tail_lines=1")).split(" ")
    assert (stamped[0][:2], stamped[1]) == ("20", "three\n")


async def test_a_failed_job_is_explained_with_the_end_of_the_log_of_its_first_failure(
    rest: RestSession,
) -> None:
    await rest.create_job()
    lines = "for i in 1 2 3 4 5 6; do echo line $i; done; exit 3"
    await rest.create_pod("w", 0, shell(lines))
    await rest.cluster.phase("train-w-0", "Failed")
    status = {"status": {"state": {"phase": "Failed", "message": "1 of 1 pods failed"}}}
    await rest.cluster.client.patch(
        JOBS, "train", status, namespace=rest.cluster.namespace, subresource="status"
    )
    _, body = await rest.get(f"{rest.root}/jobs/train/why")
    assert body["cause"] == "pod train-w-0 failed: exit code 3"
    assert body["next_step"] == "see `batholith logs train --pod train-w-0`"
    assert body["failed_pod"] == "train-w-0"
    assert body["last_lines"] == [f"line {number}" for number in range(2, 7)]


async def test_followed_log_is_sent_as_it_is_written(rest: RestSession) -> None:
    await rest.create_job()
    await rest.create_pod("w", 0, shell("echo one; sleep 1000"))
    await rest.cluster.phase("train-w-0", "Running")
    log = f"{rest.root}/jobs/train/pods/train-w-0/log?follow=true"
    async with rest.request("GET", log) as response:
        assert (response.status, response.content_type) == (200, "text/plain")
        assert await response.content.readline() == b"one\n"
        await rest.cluster.delete("train-w-0", grace=0)
        assert await response.content.read() == b""


async def test_logs_that_do_not_exist(rest: RestSession) -> None:
    await rest.create_job()
    await rest.create_job("other")
    missing = {"name": "v", "configMap": {"name": "none"}}
    await rest.create_pod("w", 0, shell("true"), volumes=[missing])
    await rest.create_pod("w", 1, shell("true"), run=False)
    await rest.create_pod("w", 0, shell("true"), job="other", run=False)
    pods = f"{rest.root}/jobs/train/pods"
    await rest.cluster.wait_event("train-w-0", "FailedMount")
    status, body = await rest.get(f"{pods}/train-w-0/log")
    assert status == 409
    assert "waiting to start" in body["detail"]
    status, body = await rest.get(f"{pods}/train-w-0/log?container=none")
    assert (status, body["errors"][0]["field"]) == (422, "container")
    assert (await rest.get(f"{pods}/train-w-1/log"))[0] == 200
    for path in (f"{pods}/none/log", f"{pods}/other-w-0/log"):
        assert (await rest.get(path))[0] == 404
    for query in ("tail_lines=-1", "since_seconds=0", "limit_bytes=0", "follow=maybe"):
        assert (await rest.get(f"{pods}/train-w-0/log?{query}"))[0] == 422
    status, body = await rest.get(f"{pods}/train-w-0/log?container=c&previous=true")
    assert status == 409


async def test_the_end_of_the_client_ends_the_upstream_request(
    rest: RestSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream: list[str] = []
    stream_path = Client.stream_path

    @asynccontextmanager
    async def counted(client: Client, path: str, **more: Any) -> AsyncIterator[Any]:
        upstream.append(path)
        try:
            async with stream_path(client, path, **more) as chunks:
                yield chunks
        finally:
            upstream.remove(path)

    monkeypatch.setattr(Client, "stream_path", counted)
    await rest.create_job()
    await rest.create_pod("w", 0, shell("echo one; sleep 1000"))
    await rest.cluster.phase("train-w-0", "Running")
    for path in ("pods/train-w-0/log", "logs"):
        async with rest.request("GET", f"{rest.root}/jobs/train/{path}?follow=true") as response:
            assert await response.content.readline() == b"one\n"
            assert len(upstream) == 1
            response.close()
        await wait_for(lambda: not upstream)


async def test_merged_logs_have_all_lines_of_all_pods(rest: RestSession) -> None:
    await rest.create_job(tasks={"w": 3, "v": 1})
    for index in range(3):
        await rest.create_pod("w", index, shell(f"echo a{index}; echo b{index}; printf end"))
    both = [shell("echo main", name="main"), shell("echo side", name="side")]
    await rest.create_pod("v", 0, *both, initContainers=[shell("echo init", name="init")])
    pods = [f"train-w-{index}" for index in range(3)] + ["train-v-0"]
    for pod in pods:
        await rest.cluster.phase(pod, "Succeeded")
    status, body = await rest.get(f"{rest.root}/jobs/train/pods/train-v-0/log")
    assert (status, body["detail"]) == (422, "container: name one of: main, side")
    logs = f"{rest.root}/jobs/train/logs"
    expected = [
        f"[{pod}] {text}" for pod in pods[:3] for text in (f"a{pod[-1]}", f"b{pod[-1]}", "end")
    ]
    both_lines = ["[train-v-0 main] main", "[train-v-0 side] side"]
    text = await rest.text(f"{logs}?prefix=true")
    assert sorted(text.splitlines()) == sorted(expected + both_lines)
    assert (await rest.text(f"{logs}?container=init")) == "init\n"
    assert (await rest.text(f"{logs}?container=side&prefix=true")) == "[train-v-0] side\n"
    text = await rest.text(f"{logs}?task=w&tail_lines=1")
    assert sorted(text.splitlines()) == ["end"] * 3
    stamped = await rest.text(f"{logs}?task=v&timestamps=true&container=main")
    assert stamped.startswith("20")
    assert stamped.endswith("Z main\n")
    for query, field in (("task=none", "task"), ("container=none", "container")):
        status, body = await rest.get(f"{logs}?{query}")
        assert (status, body["errors"][0]["field"]) == (422, field)
    assert (await rest.get(f"{rest.root}/jobs/none/logs"))[0] == 404


async def test_followed_logs_of_a_job_end_with_the_job(rest: RestSession) -> None:
    """Pods that are created later join, also after all others have ended."""
    await rest.create_job(tasks={"w": 3})
    await rest.create_pod("w", 0, shell("echo zero"))
    await rest.cluster.phase("train-w-0", "Succeeded")
    async with rest.request("GET", f"{rest.root}/jobs/train/logs?follow=true") as response:
        assert await response.content.readline() == b"zero\n"
        await rest.create_pod("w", 1, shell("echo one; sleep 0.3; echo last"))
        assert await response.content.readline() == b"one\n"
        await rest.create_pod("w", 2, shell("echo two"))
        found = {await response.content.readline(), await response.content.readline()}
        assert found == {b"two\n", b"last\n"}
        await rest.cluster.phase("train-w-1", "Succeeded")
        await rest.cluster.phase("train-w-2", "Succeeded")
        await rest.set_job_phase("Completed")
        assert await response.content.read() == b""


async def test_followed_logs_continue_after_restarts_of_a_container(rest: RestSession) -> None:
    await rest.create_job()
    # Each run ends once its line was read, so that its log is not replaced before.
    script = (
        "cd ${BATHOLITH_ROOT:-/}/data && n=$(ls | wc -l) && echo run $n && touch x$n"
        " && until grep -q $n ../info/read; do sleep 0.1; done; test $n = 2"
    )
    path = f"{rest.root}/jobs/train/logs?follow=true"
    async with rest.request("GET", path) as response:
        read = {"path": "read", "fieldRef": {"fieldPath": "metadata.annotations['read']"}}
        volumes: list[Json] = [
            {"name": "data", "emptyDir": {}},
            {"name": "info", "downwardAPI": {"items": [read]}},
        ]
        mounts = [{"name": each["name"], "mountPath": f"/{each['name']}"} for each in volumes]
        crashing = {**shell(script), "volumeMounts": mounts}
        await rest.create_pod("w", 0, crashing, restartPolicy="OnFailure", volumes=volumes)
        for number in range(3):
            assert await response.content.readline() == f"run {number}\n".encode()
            body = {"metadata": {"annotations": {"read": str(number)}}}
            pod = PODS.path(rest.cluster.namespace, "train-w-0")
            await merge_patch(rest.cluster.server, pod, body)
        await rest.cluster.phase("train-w-0", "Succeeded")
        await rest.set_job_phase("Completed")
        assert await response.text() == ""


async def test_lines_of_pods_are_never_mixed(rest: RestSession) -> None:
    await rest.create_job(tasks={"w": 4})
    lines = 500
    for index in range(4):
        loop = f"i=0; while [ $i -lt {lines} ]; do echo {str(index) * 150}$i; i=$((i+1)); done"
        await rest.create_pod("w", index, shell(loop))
    async with rest.request("GET", f"{rest.root}/jobs/train/logs?follow=true") as response:
        found: dict[str, int] = dict.fromkeys("0123", 0)
        for _ in range(4 * lines):
            line = (await response.content.readline()).decode()
            pod = line[0]
            assert line == f"{pod * 150}{found[pod]}\n"
            found[pod] += 1
        for index in range(4):
            await rest.cluster.phase(f"train-w-{index}", "Succeeded")
        await rest.set_job_phase("Completed")
        assert await response.content.read() == b""


async def test_too_many_logs(rest: RestSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_logs, "MAX_FOLLOWED", 1)
    await rest.create_job()
    for index in range(2):
        await rest.create_pod("w", index, shell("echo x; sleep 1000"))
        await rest.cluster.phase(f"train-w-{index}", "Running")
        await rest.cluster.wait_log(f"train-w-{index}", "x")
    logs = f"{rest.root}/jobs/train/logs"
    status, body = await rest.get(f"{logs}?follow=true")
    assert (status, body["errors"][0]["field"]) == (422, "follow")
    assert await rest.text(logs) == "x\nx\n"


async def test_a_log_that_breaks_is_not_complete(
    rest: RestSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client must not take what it has received for the whole log."""

    async def broken() -> AsyncIterator[bytes]:
        yield b"2026-01-01T00:00:00Z one\n"
        raise ConnectionLostError("the API server was killed")

    @asynccontextmanager
    async def stream_path(client: Client, path: str, **_: Any) -> AsyncIterator[Any]:
        yield broken()

    monkeypatch.setattr(Client, "stream_path", stream_path)
    monkeypatch.setattr(merged_logs, "RETRY_DELAY", 0.001)
    await rest.create_job()
    await rest.create_pod("w", 0, shell("echo one"))
    await rest.cluster.phase("train-w-0", "Succeeded")
    for path in ("pods/train-w-0/log", "logs"):
        async with rest.request("GET", f"{rest.root}/jobs/train/{path}") as response:
            assert response.status == 200
            assert (await response.content.readline()).endswith(b"one\n")
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.content.read()
