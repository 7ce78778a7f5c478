"""Metrics of other API servers: of ``custom.metrics.k8s.io`` and ``external.metrics.k8s.io``."""

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from ...kube.client.client import Client
from ...kube.errors import ApiError, DecodeError, NotFoundError
from ...model.base import ApiStruct
from ...model.meta import LabelSelector
from ...model.selectors import SelectorError, from_label_selector
from .autoscaler_metrics import MetricsError
from .autoscaler_types import MeasuredValue, MetricIdentifier, MetricSpec, TargetReference

Json = dict[str, Any]

CUSTOM, EXTERNAL = "custom", "external"
"""The two APIs; a group is ``<name>.metrics.k8s.io``."""


class TargetError(Exception):
    """An object cannot be found by its reference; the text is the reason."""


class _Version(ApiStruct, frozen=True):
    version: str = ""


class _Group(ApiStruct, frozen=True):
    preferred_version: _Version = _Version()


class _Values(ApiStruct, frozen=True):
    items: tuple[MeasuredValue, ...] = ()


class MetricReader:
    """Reads the values of metrics."""

    def __init__(self, client: Client, plural: Callable[[TargetReference], Awaitable[str]]) -> None:
        """*plural* returns the resource of an object, as ``<plural>.<group>``.

        It raises `TargetError` or `ApiError` if there is none.
        """
        self._client = client
        self._plural = plural

    async def read(
        self, metric: MetricSpec, namespace: str, *, pods: str
    ) -> tuple[MeasuredValue, ...]:
        """Return the values of *metric*; *pods* is the selector of those that are scaled.

        Raises:
            MetricsError: there are none.
        """
        if metric.pods is not None:
            found, what = metric.pods.metric, f"unable to get metric {metric.pods.metric.name}"
            query = {"labelSelector": pods, "metricLabelSelector": selector_text(found)}
            return await self._read(CUSTOM, namespace, f"pods/*/{_quoted(found)}", query, what=what)
        if metric.object is not None:
            found, about = metric.object.metric, metric.object.described_object
            what = f"unable to get metric {found.name}: {about.kind} {namespace}/{about.name}"
            path = f"{await self._path(about, what)}/{_quoted(found)}"
            query = {"metricLabelSelector": selector_text(found)}
            return await self._read(CUSTOM, namespace, path, query, what=what)
        if metric.external is not None:
            found = metric.external.metric
            what = f"unable to get external metric {namespace}/{found.name}"
            query = {"labelSelector": selector_text(found)}
            return await self._read(EXTERNAL, namespace, _quoted(found), query, what=what)
        raise MetricsError(f"a metric of the type {metric.type} has no source")

    async def _path(self, about: TargetReference, what: str) -> str:
        """Return the path of an object below its namespace; the namespace itself has another."""
        if (about.api_version, about.kind) == ("v1", "Namespace"):
            return "metrics"
        try:
            return f"{await self._plural(about)}/{quote(about.name, safe='')}"
        except (ApiError, TargetError) as error:
            raise MetricsError(f"{what}: {_unable(CUSTOM)}: {_text(error)}") from error

    async def _read(
        self, api: str, namespace: str, path: str, query: dict[str, str], *, what: str
    ) -> tuple[MeasuredValue, ...]:
        group = f"{api}.metrics.k8s.io"
        try:
            served = await self._client.get_path(f"/apis/{group}", view=_Group)
        except NotFoundError as error:
            text = f"no {api} metrics API ({group}) registered"
            raise MetricsError(f"{what}: {_unable(api)}: {text}") from error
        except (ApiError, DecodeError) as error:
            raise MetricsError(f"{what}: {_unable(api)}: {_text(error)}") from error
        root = f"/apis/{group}/{served.preferred_version.version}/namespaces/{namespace}"
        encoded = urlencode({key: value for key, value in query.items() if value})
        full = f"{root}/{path}?{encoded}" if encoded else f"{root}/{path}"
        try:
            values = (await self._client.get_path(full, view=_Values)).items
        except (ApiError, DecodeError) as error:
            raise MetricsError(f"{what}: {_unable(api)}: {_text(error)}") from error
        if not values:
            raise MetricsError(f"{what}: no metrics returned from {api} metrics API")
        return values


def selector_text(metric: MetricIdentifier) -> str:
    """Return the selector of a metric as text; empty if it has none.

    Raises:
        MetricsError: it is invalid.
    """
    if metric.selector is None:
        return ""
    try:
        return str(from_label_selector(msgspec.convert(metric.selector, LabelSelector)))
    except (SelectorError, msgspec.ValidationError) as error:
        raise MetricsError(
            f"the selector of the metric {metric.name} is invalid: {error}"
        ) from error


def _quoted(metric: MetricIdentifier) -> str:
    return quote(metric.name, safe="")


def _text(error: Exception) -> str:
    return error.message if isinstance(error, ApiError) else str(error)


def _unable(api: str) -> str:
    return f"unable to fetch metrics from {api} metrics API"
