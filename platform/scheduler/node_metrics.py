"""Measurements of the utilization of nodes for the plugins ``usage`` and ``rescheduling``: from the
metrics API or the custom metrics API of Kubernetes, from Prometheus with node-exporter, or from
Elasticsearch with Metricbeat.

They are read outside of cycles. While the source does not respond, the last measurements stay, and
the plugin ignores them once they are too old.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar
from urllib.parse import quote

import msgspec

from ..kube.client.client import Client
from ..kube.client.config import Credentials
from ..kube.errors import ApiError, ConfigError, ConnectionLostError, DecodeError
from ..machinery.clock import Clock
from ..model import times
from ..model.base import ApiStruct
from ..model.meta import ObjectMeta
from ..model.quantity import QuantityError, parse
from .conf import ELASTICSEARCH, METRICS_SERVER, PROMETHEUS_ADAPTER, MetricsSource
from .state.cache.events import NodesMeasured
from .state.nodes.node_usage import NodeUsage, UsedAmounts
from .state.resources import amount

log = logging.getLogger(__name__)

NODE_METRICS_PATH = "/apis/metrics.k8s.io/v1beta1/nodes"
CUSTOM_METRICS_PATH = "/apis/custom.metrics.k8s.io/v1beta2/nodes/*/"
CPU_METRIC, MEMORY_METRIC = "node_cpu_usage_avg", "node_memory_usage_avg"
"""Metrics of nodes, as fractions, that Volcano has users configure in prometheus-adapter."""

_PERIOD = timedelta(minutes=10)
"""What Prometheus and Elasticsearch average over by default."""

_TIMEOUT = 10.0
"""Seconds for one measurement."""

Reading = TypeVar("Reading", NodeUsage, UsedAmounts)

_MAX_HOSTS = 10_000
"""Nodes in one response of Elasticsearch."""


class NodeMetrics(ApiStruct, frozen=True):
    """The usage of one node by the metrics API."""

    metadata: ObjectMeta = ObjectMeta()
    timestamp: str = ""
    usage: dict[str, str | int | float] = {}


class NodeMetricsList(ApiStruct, frozen=True):
    """The usage of all nodes."""

    items: tuple[NodeMetrics, ...] = ()


class DescribedObject(ApiStruct, frozen=True):
    """The object that a custom metric is about."""

    name: str = ""


class CustomMetric(ApiStruct, frozen=True):
    """The value of a custom metric."""

    described_object: DescribedObject = DescribedObject()
    timestamp: str = ""
    value: str | int | float = 0


class CustomMetricList(ApiStruct, frozen=True):
    """The values of a custom metric for all nodes."""

    items: tuple[CustomMetric, ...] = ()


class QuerySample(ApiStruct, frozen=True):
    """One series of the result of a query: Unix time, and the number as text."""

    metric: dict[str, str] = {}
    value: tuple[float, str] = (0.0, "NaN")


class QueryData(ApiStruct, frozen=True):
    """The result of a query."""

    result: tuple[QuerySample, ...] = ()


class QueryResponse(ApiStruct, frozen=True):
    """The response of Prometheus."""

    status: str = ""
    data: QueryData = QueryData()


class SearchValue(ApiStruct, frozen=True):
    """An aggregation of Elasticsearch, ``None`` without documents."""

    value: float | None = None


class SearchBucket(ApiStruct, frozen=True):
    """The aggregations of one host, fractions and milliseconds of Unix time."""

    key: str = ""
    cpu: SearchValue = SearchValue()
    memory: SearchValue = SearchValue()
    at: SearchValue = SearchValue()


class SearchBuckets(ApiStruct, frozen=True):
    """Hosts."""

    buckets: tuple[SearchBucket, ...] = ()


class SearchAggregations(ApiStruct, frozen=True):
    """Hosts."""

    hosts: SearchBuckets = SearchBuckets()


class SearchResponse(ApiStruct, frozen=True):
    """The response of Elasticsearch to :func:`search_query`."""

    aggregations: SearchAggregations = SearchAggregations()


class NodeMetricsReader:
    """Measures the nodes periodically while there is a source."""

    def __init__(
        self, client: Client, *, clock: Clock, deliver: Callable[[NodesMeasured], object]
    ) -> None:
        """Read the metrics API by *client*; *deliver* gets each measurement."""
        self._client = client
        self._clock = clock
        self._deliver = deliver
        self._source: MetricsSource | None = None
        self._changed = asyncio.Event()
        self._last_error = ""
        self._readings: dict[str, deque[NodeUsage | UsedAmounts]] = {}
        """Of each node within the period, if the source itself does not average over it."""

    def set_source(self, source: MetricsSource | None) -> None:
        """Read from *source* from now on; not at all if it is ``None``."""
        if source != self._source:
            self._source = source
            self._readings.clear()
            self._changed.set()

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self._changed.clear()
            source = self._source
            if source is None:
                await self._changed.wait()
                continue
            await self.measure(source)
            sleeping = asyncio.create_task(
                self._clock.sleep(source.interval.total_seconds()), name="next measurement"
            )
            changing = asyncio.create_task(self._changed.wait(), name="source of measurements")
            try:
                await asyncio.wait({sleeping, changing}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleeping.cancel()
                changing.cancel()

    async def measure(self, source: MetricsSource) -> None:
        """Read *source* once; an error is logged once until it changes."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                measured = await self._read(source)
        except (
            ApiError,
            ConfigError,
            ConnectionLostError,
            DecodeError,
            OSError,
            TimeoutError,
        ) as error:
            problem = f"{type(error).__name__}: {error}"
            if problem != self._last_error:
                extra = {"source": source.kind, "address": source.address, "error": problem}
                log.warning("cannot measure nodes", extra=extra)
            self._last_error = problem
        else:
            self._last_error = ""
            self._deliver(measured)

    async def _read(self, source: MetricsSource) -> NodesMeasured:
        if source.kind == METRICS_SERVER:
            found = await self._client.get_path(NODE_METRICS_PATH, view=NodeMetricsList)
            amounts = self._averaged(dict(_used_amounts(found.items)), source.period)
            return NodesMeasured(amounts=amounts)
        if source.kind == PROMETHEUS_ADAPTER:
            cpu = await _custom_metric(self._client, CPU_METRIC)
            memory = await _custom_metric(self._client, MEMORY_METRIC)
            percentages = _percentages(cpu, memory)
            return NodesMeasured(by_node=self._averaged(percentages, source.period))
        credentials = Credentials(
            server=source.address,
            insecure=not source.verify_tls,
            username=source.username,
            password=source.password,
        )
        async with Client(
            credentials, user_agent="batholith-scheduler", timeout=_TIMEOUT
        ) as client:
            if source.kind == ELASTICSEARCH:
                return await _search(client, source)
            cpu = await _query(client, cpu_query(source.period))
            memory = await _query(client, memory_query(source.period))
            return NodesMeasured(by_node=_percentages(cpu, memory))

    def _averaged(self, latest: dict[str, Reading], period: timedelta | None) -> dict[str, Reading]:
        """Return the means of what was read within *period*, with the time of *latest*."""
        if period is None:
            return latest
        self._readings = {
            name: self._within(name, reading, period) for name, reading in latest.items()
        }
        return {
            name: replace(
                reading,
                cpu=type(reading.cpu)(_mean([each.cpu for each in self._readings[name]])),
                memory=type(reading.memory)(_mean([each.memory for each in self._readings[name]])),
            )
            for name, reading in latest.items()
        }

    def _within(
        self, name: str, latest: NodeUsage | UsedAmounts, period: timedelta
    ) -> deque[NodeUsage | UsedAmounts]:
        readings = self._readings.get(name, deque())
        if not readings or readings[-1].measured_at < latest.measured_at:
            readings.append(latest)
        while readings[0].measured_at < latest.measured_at - period.total_seconds():
            readings.popleft()
        return readings


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _percentages(
    cpu: Mapping[str, tuple[float, float]], memory: Mapping[str, tuple[float, float]]
) -> dict[str, NodeUsage]:
    """Return the measurement of nodes of which both values are known."""
    return {
        name: NodeUsage(percent, memory[name][0], min(at, memory[name][1]))
        for name, (percent, at) in cpu.items()
        if name in memory
    }


def _window(period: timedelta | None) -> str:
    return f"{(period or _PERIOD).total_seconds():.0f}s"


def cpu_query(period: timedelta | None = None) -> str:
    """Return the query of Prometheus for the mean CPU utilization of nodes in percent."""
    idle = f'rate(node_cpu_seconds_total{{mode="idle"}}[{_window(period)}])'
    return f"100*(1-avg by(instance)({idle}))"


def memory_query(period: timedelta | None = None) -> str:
    """Return the query of Prometheus for the mean memory utilization of nodes in percent."""
    available = f"avg_over_time(node_memory_MemAvailable_bytes[{_window(period)}])"
    return f"100*(1-{available}/node_memory_MemTotal_bytes)"


async def _custom_metric(client: Client, name: str) -> dict[str, tuple[float, float]]:
    """Return value in percent and time by node."""
    found = await client.get_path(CUSTOM_METRICS_PATH + name, view=CustomMetricList)
    values: dict[str, tuple[float, float]] = {}
    for item in found.items:
        at = _unix_time(item.timestamp)
        try:
            percent = parse(item.value).nanos / 1e7
        except QuantityError:
            continue
        if at is not None:
            values[item.described_object.name] = (percent, at)
    return values


def _used_amounts(items: Iterable[NodeMetrics]) -> Iterable[tuple[str, UsedAmounts]]:
    for item in items:
        at = _unix_time(item.timestamp)
        if at is not None:
            cpu, memory = (amount(name, item.usage.get(name, 0)) for name in ("cpu", "memory"))
            yield item.metadata.name, UsedAmounts(cpu, memory, at)


async def _query(client: Client, query: str) -> dict[str, tuple[float, float]]:
    """Return value and time by node."""
    found = await client.get_path(f"/api/v1/query?query={quote(query)}", view=QueryResponse)
    if found.status != "success":
        raise DecodeError(f"the query did not succeed: {found.status!r}")
    values: dict[str, tuple[float, float]] = {}
    for sample in found.data.result:
        name = sample.metric.get("instance", "").partition(":")[0]
        try:
            value = float(sample.value[1])
        except ValueError:
            continue
        if name and math.isfinite(value):
            values[name] = (value, sample.value[0])
    return values


def search_query(host_field: str, period: timedelta | None = None) -> str:
    """Return the search for the mean of CPU and memory of each host, as JSON."""
    means = {
        "cpu": {"avg": {"field": "host.cpu.usage"}},
        "memory": {"avg": {"field": "system.memory.actual.used.pct"}},
        "at": {"max": {"field": "@timestamp"}},
    }
    hosts = {"terms": {"field": host_field, "size": _MAX_HOSTS}, "aggs": means}
    recent = {"range": {"@timestamp": {"gte": f"now-{_window(period)}", "lt": "now"}}}
    query = {"size": 0, "query": recent, "aggs": {"hosts": hosts}}
    return msgspec.json.encode(query).decode()


async def _search(client: Client, source: MetricsSource) -> NodesMeasured:
    index, query = (
        quote(source.index, safe="*,"),
        quote(search_query(source.host_field, source.period)),
    )
    path = f"/{index}/_search?source_content_type=application/json&source={query}"
    found = await client.get_path(path, view=SearchResponse)
    measured: dict[str, NodeUsage] = {}
    for host in found.aggregations.hosts.buckets:
        cpu, memory, at = host.cpu.value, host.memory.value, host.at.value
        if cpu is not None and memory is not None and at is not None:
            measured[host.key] = NodeUsage(100 * cpu, 100 * memory, at / 1000)
    return NodesMeasured(by_node=measured)


def _unix_time(timestamp: str) -> float | None:
    try:
        return times.parse(timestamp).timestamp()
    except times.TimeError:
        return None
