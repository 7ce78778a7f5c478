"""Logs of a job's pods over REST, with pods that run, on both API servers."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from support.agent import container
from support.api_servers import ServerFactory, add_namespace
from support.job_pods import RestSession, logs_cluster

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
async def rest(shared: RestSession) -> RestSession:
    """The same in a namespace of this test."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    await add_namespace(shared.cluster.server, name)
    return replace(shared, cluster=replace(shared.cluster, namespace=name), job_uids={})


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


async def test_merged_logs(rest: RestSession) -> None:
    await rest.create_job()
    for index in range(3):
        await rest.create_pod("w", index, shell(f"echo a{index}; echo b{index}"))
    for index in range(3):
        await rest.cluster.phase(f"train-w-{index}", "Succeeded")
    text = await rest.text(f"{rest.root}/jobs/train/logs?prefix=true")
    assert sorted(text.splitlines()) == sorted(
        f"[train-w-{index}] {letter}{index}" for index in range(3) for letter in "ab"
    )
