"""Logs of pods that run, through both clients, over connections that break."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from support.agent import container
from support.api_servers import EmbeddedServerFactory
from support.job_pods import RestSession, logs_cluster
from support.sdk import FLAVOURS, LossyTransport, Sdk, sdk

from batholith.client import NotFoundError

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.process]

LINES = 40
SCRIPT = f"for i in $(seq {LINES}); do echo line $i; sleep 0.01; done"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rest(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RestSession]:
    """A job with two pods that have ended, and one that still writes when it is followed."""
    directory: Path = tmp_path_factory.mktemp("world")
    async with logs_cluster(EmbeddedServerFactory(), directory) as found:
        await found.create_job(tasks={"w": 2, "slow": 1})
        for index in range(2):
            script = f"echo a{index}; echo '<b>'"
            await found.create_pod("w", index, container("sh", "-c", script, name="c"))
            await found.cluster.phase(f"train-w-{index}", "Succeeded")
        await found.create_pod("slow", 0, container("sh", "-c", SCRIPT, name="c"))
        yield found


@pytest_asyncio.fixture(loop_scope="module", params=FLAVOURS)
async def client(rest: RestSession, request: pytest.FixtureRequest) -> AsyncIterator[Sdk]:
    async with client_of(rest, request.param) as found:
        yield found


def client_of(rest: RestSession, flavour: str, **options: Any) -> Any:
    namespace = rest.cluster.namespace
    return sdk(flavour, rest.url, token=rest.token, namespace=namespace, **options)


async def test_logs_of_pods_are_selected_and_formatted(client: Sdk) -> None:
    async def lines(**options: Any) -> list[str]:
        found: list[str] = await client.call(lambda it: it.jobs.logs("train", **options))
        return found

    assert await lines(pod="train-w-0") == ["a0", "<b>"]
    assert await lines(pod="train-w-1", tail_lines=1, prefix=True) == ["<b>"]
    assert sorted(await lines(task="w")) == [
        "[train-w-0] <b>",
        "[train-w-0] a0",
        "[train-w-1] <b>",
        "[train-w-1] a1",
    ]
    assert sorted(await lines(task="w", prefix=False, tail_lines=1)) == ["<b>", "<b>"]
    [stamped] = await lines(pod="train-w-0", timestamps=True, tail_lines=1)
    assert stamped[:2] == "20"
    assert stamped.endswith("Z <b>")
    with pytest.raises(NotFoundError):
        await lines(pod="absent")
    with pytest.raises(ValueError, match="either a task or a pod"):
        await lines(pod="a", task="b")


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_a_followed_log_has_each_line_once_though_connections_break(
    rest: RestSession, flavour: str
) -> None:
    lengths = iter([1, 100, 333, 800])

    def cut(request: httpx.Request) -> int | None:
        return next(lengths, None) if request.url.path.endswith("/log") else None

    transport = LossyTransport(cut=cut)
    async with client_of(rest, flavour, transport=transport) as found:
        lines = await found.call(lambda it: it.jobs.logs("train", pod="train-slow-0", follow=True))
    assert lines == [f"line {number}" for number in range(1, LINES + 1)]
    assert len(transport.requests) == 5


@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_the_log_of_a_job_has_each_line_once_though_connections_break(
    rest: RestSession, flavour: str
) -> None:
    lengths = iter([50, 1000, 2000])

    def cut(request: httpx.Request) -> int | None:
        return next(lengths, None)

    async with client_of(rest, flavour, transport=LossyTransport(cut=cut)) as found:
        lines = await found.call(lambda it: it.jobs.logs("train", prefix=False))
    expected = ["a0", "a1", "<b>", "<b>", *(f"line {number}" for number in range(1, LINES + 1))]
    assert sorted(lines) == sorted(expected)
    numbered = [line for line in lines if line.startswith("line ")]
    assert numbered == expected[4:]
