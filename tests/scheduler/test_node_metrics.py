"""Measurement of nodes by the metrics API and by Prometheus."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import encode_basic_auth, web
from aiohttp.test_utils import TestServer
from support.polling import wait_for
from support.scheduler import node

from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials
from batholith.machinery.testing import FakeClock
from batholith.scheduler import conf
from batholith.scheduler.conf import METRICS_SERVER, PROMETHEUS, PROMETHEUS_ADAPTER, MetricsSource
from batholith.scheduler.node_metrics import (
    CPU_METRIC,
    CUSTOM_METRICS_PATH,
    MEMORY_METRIC,
    NODE_METRICS_PATH,
    NodeMetricsReader,
    cpu_query,
    memory_query,
)
from batholith.scheduler.state.cache.events import NodesMeasured
from batholith.scheduler.state.nodes.node_matrix import NodeMatrix
from batholith.scheduler.state.nodes.node_usage import NodeUsage, NodeUsages, UsedAmounts

TIME = "2026-01-01T00:00:10Z"
UNIX = 1767225610.0


class Sources:
    """A server with the metrics API and Prometheus, and a reader of it."""

    def __init__(self) -> None:
        self.responses: dict[str, Any] = {}
        self.requests: list[str] = []
        self.searches: list[dict[str, str]] = []
        self.measured: list[NodesMeasured] = []
        self.clock = FakeClock()
        self.url = ""

    async def respond(self, request: web.Request) -> web.Response:
        key = request.query.get("query", request.path)
        self.requests.append(key)
        if source := request.query.get("source"):
            authorization = request.headers["Authorization"]
            self.searches.append({"source": source, "authorization": authorization})
        found = self.responses.get(key)
        if found is None:
            return web.Response(status=404)
        text = found if isinstance(found, str) else json.dumps(found)
        return web.Response(text=text, content_type="application/json")

    def reader(self, client: Client) -> NodeMetricsReader:
        return NodeMetricsReader(client, clock=self.clock, deliver=self.measured.append)


@pytest.fixture
async def sources() -> AsyncIterator[Sources]:
    found = Sources()
    application = web.Application()
    application.router.add_get("/{path:.*}", found.respond)
    async with TestServer(application) as server:
        found.url = str(server.make_url("")).rstrip("/")
        yield found


@pytest.fixture
async def client(sources: Sources) -> AsyncIterator[Client]:
    async with Client(Credentials(server=sources.url), user_agent="test") as opened:
        yield opened


def vector(**values: str) -> dict[str, Any]:
    result = [
        {"metric": {"instance": name.replace("__", ":")}, "value": [UNIX, value]}
        for name, value in values.items()
    ]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


async def test_amounts_of_the_metrics_api_are_read(sources: Sources, client: Client) -> None:
    item = {
        "metadata": {"name": "n"},
        "timestamp": TIME,
        "usage": {"cpu": "1500m", "memory": "2Gi"},
    }
    broken = {"metadata": {"name": "x"}, "timestamp": "now", "usage": {}}
    sources.responses[NODE_METRICS_PATH] = {"items": [item, broken]}
    await sources.reader(client).measure(MetricsSource(METRICS_SERVER))
    (measured,) = sources.measured
    assert measured.amounts == {"n": UsedAmounts(1500, 2 * 2**30, UNIX)}


async def test_percentages_of_prometheus_are_read(sources: Sources, client: Client) -> None:
    sources.responses[cpu_query()] = vector(a="12.5", b__9100="50", c="NaN", d="1")
    reader = sources.reader(client)
    await reader.measure(MetricsSource(PROMETHEUS, sources.url))
    assert not sources.measured  # there is no memory yet
    sources.responses[memory_query()] = vector(a="25", b__9100="75", c="3")
    await reader.measure(MetricsSource(PROMETHEUS, sources.url))
    (measured,) = sources.measured
    assert measured.by_node == {"a": NodeUsage(12.5, 25, UNIX), "b": NodeUsage(50, 75, UNIX)}


async def test_prometheus_averages_over_the_period(sources: Sources, client: Client) -> None:
    period = timedelta(minutes=5)
    for query in (cpu_query(period), memory_query(period)):
        assert query.count("[300s]") == 1
        sources.responses[query] = vector(a="25")
    await sources.reader(client).measure(MetricsSource(PROMETHEUS, sources.url, period=period))
    (measured,) = sources.measured
    assert measured.by_node == {"a": NodeUsage(25, 25, UNIX)}


async def test_what_the_metrics_api_returns_is_averaged_over_the_period(
    sources: Sources, client: Client
) -> None:
    source, reader = (
        MetricsSource(METRICS_SERVER, period=timedelta(minutes=5)),
        sources.reader(client),
    )
    for minute, cpu in ((0, "1"), (0, "1"), (3, "2"), (8, "4")):
        item = {
            "metadata": {"name": "n"},
            "timestamp": TIME.replace("00:10", f"0{minute}:10"),
            "usage": {"cpu": cpu, "memory": "1Gi"},
        }
        sources.responses[NODE_METRICS_PATH] = {"items": [item]}
        await reader.measure(source)
    amounts = [each.amounts["n"] for each in sources.measured]
    assert [each.cpu for each in amounts] == [1000, 1000, 1500, 3000]
    assert amounts[-1] == UsedAmounts(3000, 2**30, UNIX + 8 * 60)


async def test_fractions_of_the_custom_metrics_api_are_read(
    sources: Sources, client: Client
) -> None:
    def items(**values: str) -> dict[str, Any]:
        return {
            "items": [
                {"describedObject": {"name": name}, "timestamp": TIME, "value": value}
                for name, value in values.items()
            ]
        }

    sources.responses[f"{CUSTOM_METRICS_PATH}{CPU_METRIC}"] = items(a="125m", b="x", c="1")
    sources.responses[f"{CUSTOM_METRICS_PATH}{MEMORY_METRIC}"] = items(a="500m", b="1")
    await sources.reader(client).measure(MetricsSource(PROMETHEUS_ADAPTER))
    (measured,) = sources.measured
    assert measured.by_node == {"a": NodeUsage(12.5, 50, UNIX)}


async def test_fractions_of_elasticsearch_are_read(sources: Sources, client: Client) -> None:
    def bucket(name: str, cpu: float | None, memory: float | None) -> dict[str, Any]:
        values = {"cpu": cpu, "memory": memory, "at": UNIX * 1000}
        return {"key": name, **{key: {"value": value} for key, value in values.items()}}

    buckets = [bucket("a", 0.125, 0.5), bucket("b", None, 0.5), bucket("c", 1, 0)]
    sources.responses["/beats-*/_search"] = {"aggregations": {"hosts": {"buckets": buckets}}}
    text = (
        f"metrics: {{type: elasticsearch, address: '{sources.url}', elasticsearch.index: beats-*, "
        "elasticsearch.hostnameFieldName: agent.name, elasticsearch.username: u, "
        "elasticsearch.password: p}"
    )
    source = conf.load(conf.DEFAULT + text).metrics
    await sources.reader(client).measure(source)
    (measured,) = sources.measured
    assert measured.by_node == {"a": NodeUsage(12.5, 50, UNIX), "c": NodeUsage(100, 0, UNIX)}
    (asked,) = sources.searches
    assert json.loads(asked["source"])["aggs"]["hosts"]["terms"]["field"] == "agent.name"
    assert asked["authorization"] == encode_basic_auth("u", "p")


@pytest.mark.parametrize("response", [None, "no JSON", {"status": "error"}])
async def test_an_error_of_the_source_is_logged_once_and_changes_nothing(
    sources: Sources, client: Client, response: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sources.responses[cpu_query()] = response
    reader = sources.reader(client)
    for _ in range(2):
        await reader.measure(MetricsSource(PROMETHEUS, sources.url))
    assert not sources.measured and caplog.messages == ["cannot measure nodes"]


async def test_nodes_are_measured_in_each_interval_while_there_is_a_source(
    sources: Sources, client: Client
) -> None:
    sources.responses[NODE_METRICS_PATH] = {"items": []}
    reader = sources.reader(client)
    running = asyncio.create_task(reader.run())
    try:
        await sources.clock.advance(100)
        assert not sources.requests
        reader.set_source(MetricsSource(interval=timedelta(seconds=20)))
        await wait_for(lambda: len(sources.measured) == 1)
        await sources.clock.advance(20)
        await wait_for(lambda: len(sources.measured) == 2)
        reader.set_source(None)
        await sources.clock.advance(100)
        assert len(sources.requests) == 2
    finally:
        running.cancel()


def test_amounts_are_divided_by_what_is_allocatable() -> None:
    nodes, usages = NodeMatrix(), NodeUsages()
    nodes.update_node(node("n", cpu=4, memory="8Gi"))
    amounts = {"n": UsedAmounts(1000, 2 * 2**30, 5.0), "unknown": UsedAmounts(1, 1, 5.0)}
    usages.update({}, amounts, nodes)
    assert usages.by_node == {"n": NodeUsage(25, 25, 5.0)}
