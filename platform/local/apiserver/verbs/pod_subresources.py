"""The subresources of pods: binding, eviction, log, streams."""

from collections.abc import AsyncGenerator
from dataclasses import replace

import msgspec

from ....model import names
from ..current_time import now
from ..errors.status import StatusError, bad_request, conflict, internal, not_found
from ..http.bodies import decode_body, get_object
from ..http.requests import Json, ObjectPath, Request, Response
from ..kinds.info import KindInfo
from ..media_types import TEXT
from ..storage.resource_store import ResourceStore
from . import log_websockets
from .deletes import Deleter
from .disruption_budgets import consume_disruption
from .log_options import log_parameters
from .log_proxy import LogProxy, LogSource
from .node_addresses import KUBELET_PORT, agent_address, host_of
from .options import parse_delete_options
from .stream_proxy import PORT_FORWARD, StreamProxy, StreamTarget, check_upgrade
from .write_requests import WriteRequest
from .writes import Writer

_SUCCESS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
_BINDING = names.PODS._replace(plural="pods/binding")
"""Resource in the errors of a binding."""


class PodSubresources:
    """Handles requests for subresources of pods."""

    def __init__(
        self,
        writer: Writer,
        deleter: Deleter,
        kinds: "PodKinds",
        log_proxy: LogProxy | None,
        stream_proxy: StreamProxy | None,
    ) -> None:
        self._writer = writer
        self._deleter = deleter
        self._kinds = kinds
        self._log_proxy = log_proxy
        self._stream_proxy = stream_proxy

    async def bind(self, write_request: WriteRequest, request: Request) -> Response:
        """Bind a pod to a node.

        Raises:
            StatusError: 400, 404, 409, 422.
        """
        binding = decode_body(request)
        name = get_object(binding, "metadata").get("name", "")
        target_kind, node = (get_object(binding, "target").get(key, "") for key in ("kind", "name"))
        if not isinstance(name, str) or not isinstance(node, str):
            raise bad_request("the names in a Binding are texts")
        if write_request.object_path.name and name != write_request.object_path.name:
            raise bad_request("name in URL does not match name in Binding object")
        if target_kind not in ("", "Node"):
            raise StatusError(500, "", f"target.kind: Unsupported value: {target_kind!r}")
        if not node:
            raise StatusError(500, "", "target.name: Required value")
        self._writer.admission.node_restriction.check_binding(write_request.user, name)
        target = ObjectPath(
            namespace=write_request.object_path.namespace, name=name, subresource="binding"
        )
        aimed = WriteRequest(
            kind=self._kinds.pods,
            object_path=target,
            user=write_request.user,
            options=write_request.options,
        )
        await self._writer.update_unchecked(
            aimed, lambda pod: _with_binding(pod, binding, node)
        ).committed()
        return Response(status=201, body=msgspec.json.encode(_SUCCESS) + b"\n")

    async def evict(self, write_request: WriteRequest, request: Request) -> Response:
        """Delete a pod, unless a disruption budget forbids it.

        Raises:
            StatusError: 404, 409, 429, 500.
        """
        eviction = decode_body(request)
        if get_object(eviction, "metadata").get("name") != write_request.object_path.name:
            raise bad_request("name in URL does not match name in Eviction object")
        options = parse_delete_options(get_object(eviction, "deleteOptions"))
        _, entry = self._writer.get_latest(write_request)
        self._writer.admission.node_restriction.check_eviction(
            write_request.user, entry.name, entry.node
        )
        consume_disruption(
            self._writer, self._kinds.budgets, entry, dry_run=write_request.options.dry_run
        )
        target = ObjectPath(
            namespace=write_request.object_path.namespace, name=write_request.object_path.name
        )
        written = self._deleter.delete(
            WriteRequest(kind=write_request.kind, object_path=target, user=write_request.user),
            replace(options, dry_run=options.dry_run or write_request.options.dry_run),
        )
        await written.committed()
        return Response(status=201, body=msgspec.json.encode(_SUCCESS) + b"\n")

    async def log(self, write_request: WriteRequest, request: Request) -> Response:
        """Return a container's log, fetched from the agent of the pod's node.

        Raises:
            StatusError: 400, 404, 422, or the agent's error.
        """
        _, entry = self._writer.get_latest(write_request)
        pod = entry.parse()
        parameters = log_parameters(request, entry.name)
        container = _container(pod, request.query.get("container", ""))
        node = (pod.get("spec") or {}).get("nodeName", "")
        if not node:
            # As on a real cluster, a pod without a node has an empty log.
            return Response(content_type=TEXT)
        if self._log_proxy is None:
            raise internal("this server has no client certificate for agents")
        host, port = self._kubelet_address(node)
        source = LogSource(
            host=host,
            port=port,
            namespace=entry.namespace,
            pod=entry.name,
            container=container,
            parameters=parameters,
        )
        protocol = log_websockets.negotiate(request)
        opened = await self._log_proxy.open(source)
        if protocol is not None:
            return log_websockets.response(request, protocol, opened)
        stream: AsyncGenerator[bytes] = opened
        return Response(content_type=TEXT, stream=stream)

    async def stream(self, write_request: WriteRequest, request: Request) -> Response:
        """Open the stream of exec, attach or port-forward to the agent of the pod's node.

        Raises:
            StatusError: 400, 404, or the agent's error.
        """
        check_upgrade(request)
        _, entry = self._writer.get_latest(write_request)
        pod = entry.parse()
        subresource = write_request.object_path.subresource
        names_in_path = [entry.namespace, entry.name]
        if subresource != PORT_FORWARD:
            names_in_path.append(_container(pod, request.query.get("container", "")))
        node = (pod.get("spec") or {}).get("nodeName", "")
        if not node:
            raise bad_request(f"pod {entry.name} does not have a host assigned")
        if self._stream_proxy is None:
            raise internal("this server has no client certificate for agents")
        host, port = self._kubelet_address(node)
        target = StreamTarget(host=host, port=port, subresource=subresource, names=names_in_path)
        return await self._stream_proxy.open(target, request)

    def _kubelet_address(self, node: str) -> tuple[str, int]:
        return kubelet_address(self._writer.store.resource_store(self._kinds.nodes), node)


def kubelet_address(nodes: ResourceStore, node: str) -> tuple[str, int]:
    """Return host and port of the agent of a node.

    Raises:
        StatusError: 404, there is no such node.
    """
    entry = nodes.get("", node)
    if entry is None:
        raise not_found(names.NODES, node)
    found = entry.parse()
    return agent_address(found) or (host_of(found), KUBELET_PORT)


class PodKinds(msgspec.Struct, frozen=True, kw_only=True):
    """Kinds that these handlers use."""

    pods: KindInfo
    nodes: KindInfo
    budgets: KindInfo


def _with_binding(pod: Json, binding: Json, node: str) -> Json:
    name = pod["metadata"]["name"]
    spec = pod.get("spec") or {}
    if pod["metadata"].get("deletionTimestamp"):
        raise conflict(_BINDING, name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
        raise conflict(_BINDING, name, why)
    if spec.get("schedulingGates"):
        raise conflict(_BINDING, name, f"pod {name} has non-empty .spec.schedulingGates")
    binding_metadata = get_object(binding, "metadata")
    metadata = dict(pod["metadata"])
    uid = binding_metadata.get("uid")
    if uid and uid != metadata["uid"]:
        why = (
            f"Precondition failed: UID in precondition: {uid}, UID in object meta: "
            f"{metadata['uid']}"
        )
        raise conflict(names.PODS, name, why)
    version = binding_metadata.get("resourceVersion")
    if version and version != metadata["resourceVersion"]:
        why = (
            f"Precondition failed: ResourceVersion in precondition: {version}, "
            f"ResourceVersion in object meta: {metadata['resourceVersion']}"
        )
        raise conflict(names.PODS, name, why)
    for key in ("labels", "annotations"):
        if added := get_object(binding_metadata, key):
            metadata[key] = {**(metadata.get(key) or {}), **added}
    status = dict(pod.get("status") or {})
    before = [each for each in status.get("conditions") or () if each.get("type") != "PodScheduled"]
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": now(),
    }
    status["conditions"] = [*before, scheduled]
    return {**pod, "metadata": metadata, "spec": {**spec, "nodeName": node}, "status": status}


def _container(pod: Json, requested: str) -> str:
    spec = pod.get("spec") or {}
    name = pod["metadata"]["name"]
    regular = [each["name"] for each in spec.get("containers") or ()]
    initial = [each["name"] for each in spec.get("initContainers") or ()]
    other = [each["name"] for each in spec.get("ephemeralContainers") or ()]
    if requested:
        if requested not in (*regular, *initial, *other):
            raise bad_request(f"container {requested} is not valid for pod {name}")
        return requested
    default = (pod["metadata"].get("annotations") or {}).get(
        "kubectl.kubernetes.io/default-container"
    )
    if default in regular:
        return str(default)
    if len(regular) == 1:
        return str(regular[0])
    text = (
        f"a container name must be specified for pod {name}, choose one of: [{' '.join(regular)}]"
    )
    if initial:
        text += f" or one of the init containers: [{' '.join(initial)}]"
    raise bad_request(text)
