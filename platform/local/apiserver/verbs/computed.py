"""Resources whose objects are computed for each request: the usage of nodes and pods.

metrics.k8s.io is served as by metrics-server, from what the agents measure.
"""

import asyncio
import logging
from contextlib import suppress

import msgspec

from ....model import names
from ....model.quantity import QuantityError, parse
from ..builtin.kinds import NODE_METRICS, POD_METRICS
from ..current_time import now
from ..discovery.catalog import Catalog
from ..errors.status import StatusError, method_not_allowed, not_found
from ..http.negotiation import negotiate
from ..http.requests import Json, Request, Response
from ..http.routes import RequestInfo
from ..kinds.info import KindInfo
from ..storage.object_store import ObjectStore
from ..storage.watch import SelectionPredicate
from .log_proxy import LogProxy
from .node_addresses import agent_address
from .options import read_options

log = logging.getLogger(__name__)

_RUNNING = "Running"
_RUNTIME_LABEL, _SIMULATED = "batholith.io/runtime", "simulated"
_NO_WINDOW = 0.0


class ComputedReader:
    """Handles the requests for computed resources."""

    def __init__(self, store: ObjectStore, catalog: Catalog, agents: LogProxy) -> None:
        self._agents = agents
        self._nodes = store.resource_store(catalog.require(names.NODES))
        self._pods = store.resource_store(catalog.require(names.PODS))

    async def handle(self, request: Request, kind: KindInfo, request_info: RequestInfo) -> Response:
        """Handle a GET of one object or of a list.

        Raises:
            StatusError: it is rejected.
        """
        path = request_info.object_path
        watches = request_info.watch or request.bool_param("watch")
        if request.method not in ("GET", "HEAD") or path.subresource or watches:
            raise method_not_allowed(kind.resource)
        negotiate(request.headers.get("accept", ""))
        if path.name:
            found = await self._objects(kind, path.namespace, path.name)
            if not found:
                raise not_found(kind.resource, path.name)
            return _response(found[0])
        selection = read_options(request, kind, path, watch=False).selection
        objects = await self._objects(kind, path.namespace, "")
        head = {"kind": kind.list_kind, "apiVersion": kind.resource.api_version, "metadata": {}}
        items = [each for each in objects if _matches(selection, kind, each)]
        return _response(head | {"items": items})

    async def _objects(self, kind: KindInfo, namespace: str, name: str) -> list[Json]:
        """Return the objects of a namespace, or of all if it is empty; with *name* that one."""
        if kind is NODE_METRICS:
            found = await self._node_metrics()
        elif kind is POD_METRICS:
            found = await self._pod_metrics(namespace)
        else:
            raise LookupError(f"{kind.resource.plural} are not computed")
        if not name:
            return found
        return [each for each in found if each["metadata"]["name"] == name]

    async def _node_metrics(self) -> list[Json]:
        metrics = []
        for name, summary in (await self._summaries()).items():
            node = self._nodes.get("", name)
            measured = summary.get("node") or {}
            if node is not None and "cpu" in measured:
                usage = _usage(_nanocores(measured), _bytes(measured))
                metrics.append(_metrics(NODE_METRICS, node.shared(), measured) | {"usage": usage})
        return metrics

    async def _pod_metrics(self, namespace: str) -> list[Json]:
        measured = {
            pod["podRef"]["uid"]: pod["containers"]
            for summary in (await self._summaries()).values()
            for pod in summary.get("pods") or ()
        }
        metrics = []
        for entry in self._pods.entries():
            if namespace and entry.namespace != namespace:
                continue
            pod = entry.shared()
            containers = measured.get(pod["metadata"]["uid"]) or self._simulated(pod)
            # As metrics-server: a pod counts only if all of its containers do.
            if not containers or not _running(pod) <= {each["name"] for each in containers}:
                continue
            usages = [
                {"name": each["name"], "usage": _usage(_nanocores(each), _bytes(each))}
                for each in containers
            ]
            metrics.append(_metrics(POD_METRICS, pod, containers[0]) | {"containers": usages})
        return sorted(
            metrics, key=lambda each: (each["metadata"]["namespace"], each["metadata"]["name"])
        )

    def _simulated(self, pod: Json) -> list[Json]:
        """Return what a pod of a simulated node uses: no other pod may claim its usage."""
        node = self._nodes.get("", pod["spec"].get("nodeName") or "")
        if node is None or node.labels.get(_RUNTIME_LABEL) != _SIMULATED:
            return []
        return simulated_usage(pod)

    async def _summaries(self) -> dict[str, Json]:
        """Return the summaries of the nodes whose agents respond, by name."""
        addresses = {}
        for entry in self._nodes.entries():
            address = agent_address(entry.shared())
            if address is not None:
                addresses[entry.name] = address
        responses = await asyncio.gather(
            *(self._agents.usage(*address) for address in addresses.values()),
            return_exceptions=True,
        )
        found = {}
        for name, response in zip(addresses, responses, strict=True):
            if isinstance(response, StatusError):
                log.info("cannot read usage", extra={"node": name, "error": str(response)})
            elif isinstance(response, BaseException):
                raise response
            else:
                found[name] = response
        return found


def simulated_usage(pod: Json) -> list[Json]:
    """Return what the containers of a running pod use according to its annotations."""
    annotations = pod["metadata"].get("annotations") or {}
    if (pod.get("status") or {}).get("phase") != _RUNNING:
        return []
    with suppress(QuantityError, LookupError):
        cpu, memory = parse(annotations[names.SIMULATED_CPU]), annotations[names.SIMULATED_MEMORY]
        measured = {
            "cpu": {"time": now(), "usageNanoCores": cpu.nanos},
            "memory": {"time": now(), "workingSetBytes": parse(memory).value()},
            "windowSeconds": _NO_WINDOW,
        }
        return [{"name": each["name"], **measured} for each in pod["spec"]["containers"]]
    return []


def _running(pod: Json) -> set[str]:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return {each["name"] for each in statuses if "running" in (each.get("state") or {})}


def _metrics(kind: KindInfo, obj: Json, measured: Json) -> Json:
    source, metadata = obj["metadata"], {"name": obj["metadata"]["name"]}
    if kind.resource.namespaced:
        metadata["namespace"] = source["namespace"]
    metadata["creationTimestamp"] = now()
    if labels := source.get("labels"):
        metadata["labels"] = labels
    return {
        "kind": kind.resource.kind,
        "apiVersion": kind.resource.api_version,
        "metadata": metadata,
        "timestamp": measured["cpu"]["time"],
        "window": f"{measured['windowSeconds']:g}s",
    }


def _usage(nanocores: int, size: int) -> Json:
    return {"cpu": f"{nanocores}n" if nanocores else "0", "memory": f"{-(-size // 1024)}Ki"}


def _nanocores(measured: Json) -> int:
    return int(measured["cpu"]["usageNanoCores"])


def _bytes(measured: Json) -> int:
    return int(measured["memory"]["workingSetBytes"])


def _matches(selection: SelectionPredicate, kind: KindInfo, obj: Json) -> bool:
    if selection.labels is not None and not selection.labels.matches(
        obj["metadata"].get("labels") or {}
    ):
        return False
    return all(each.matches(kind.field_value(obj, each.path) or "") for each in selection.fields)


def _response(obj: Json) -> Response:
    return Response(body=msgspec.json.encode(obj) + b"\n")
