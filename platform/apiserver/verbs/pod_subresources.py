"""The sub-resources of pods: binding, eviction, log."""

from collections.abc import AsyncGenerator
from dataclasses import replace

import msgspec

from ...model import names
from ..errors.status import StatusError, bad_request, conflict, internal, not_found
from ..http.bodies import decode_body, section
from ..http.requests import TEXT, Json, Request, Response, Target
from ..kinds.info import KindInfo
from ..storage.object_store import Shelf
from .deletes import Deleter
from .disruption_budgets import spend
from .log_proxy import LogRelay, LogSource
from .options import sent_delete_options
from .writes import Call, Writer, now

_DONE = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
_BINDING = replace(names.PODS, plural="pods/binding")
"""How refusals of a binding call what they are about."""

_KUBELET_PORT = 10250


class PodParts:
    """Answers requests about parts of pods."""

    def __init__(
        self, writer: Writer, deleter: Deleter, kinds: "PodKinds", relay: LogRelay | None
    ) -> None:
        self._writer = writer
        self._deleter = deleter
        self._kinds = kinds
        self._relay = relay

    async def bind(self, call: Call, request: Request) -> Response:
        """Give a pod its node.

        Raises:
            StatusError: 400, 404, 409, 422.
        """
        binding = decode_body(request)
        name = section(binding, "metadata").get("name", "")
        target_kind, node = (section(binding, "target").get(key, "") for key in ("kind", "name"))
        if not isinstance(name, str) or not isinstance(node, str):
            raise bad_request("the names in a Binding are texts")
        if call.target.name and name != call.target.name:
            raise bad_request("name in URL does not match name in Binding object")
        if target_kind not in ("", "Node"):
            raise StatusError(500, "", f"target.kind: Unsupported value: {target_kind!r}")
        if not node:
            raise StatusError(500, "", "target.name: Required value")
        target = Target(namespace=call.target.namespace, name=name, subresource="binding")
        aimed = Call(kind=self._kinds.pods, target=target, user=call.user, options=call.options)
        await self._writer.put(aimed, lambda pod: _bound(pod, binding, node)).settled()
        return Response(status=201, body=msgspec.json.encode(_DONE) + b"\n")

    async def evict(self, call: Call, request: Request) -> Response:
        """Delete a pod, unless a disruption budget keeps it.

        Raises:
            StatusError: 404, 409, 429, 500.
        """
        eviction = decode_body(request)
        if section(eviction, "metadata").get("name", call.target.name) != call.target.name:
            raise bad_request("name in URL does not match name in Eviction object")
        options = sent_delete_options(section(eviction, "deleteOptions"))
        _, entry = self._writer.current(call)
        spend(self._writer, self._kinds.budgets, entry, dry_run=call.options.dry_run)
        target = Target(namespace=call.target.namespace, name=call.target.name)
        written = self._deleter.delete(
            Call(kind=call.kind, target=target, user=call.user),
            replace(options, dry_run=options.dry_run or call.options.dry_run),
        )
        await written.settled()
        return Response(status=201, body=msgspec.json.encode(_DONE) + b"\n")

    async def log(self, call: Call, request: Request) -> Response:
        """What a container wrote, fetched from the agent of its node.

        Raises:
            StatusError: 400, 404, or what the agent answers.
        """
        _, entry = self._writer.current(call)
        pod = entry.parse()
        container = _container(pod, request.query.get("container", ""))
        node = (pod.get("spec") or {}).get("nodeName", "")
        if not node:
            # As on a real cluster: a pod without a node has no log, which is no error.
            return Response(content_type=TEXT)
        if self._relay is None:
            raise internal("this server has no certificate to show to agents")
        host, port = self._address(node)
        source = LogSource(
            host=host,
            port=port,
            namespace=entry.namespace,
            pod=entry.name,
            container=container,
            parameters={k: v for k, v in request.query.items() if k != "container"},
        )
        opened = await self._relay.open(source)
        stream: AsyncGenerator[bytes] = opened
        return Response(content_type=TEXT, stream=stream)

    def _address(self, node: str) -> tuple[str, int]:
        shelf: Shelf = self._writer.registry.shelf(self._kinds.nodes)
        entry = shelf.get("", node)
        if entry is None:
            raise not_found(names.NODES, node)
        status = entry.parse().get("status") or {}
        by_type = {each.get("type"): each.get("address") for each in status.get("addresses") or ()}
        host = by_type.get("InternalIP") or by_type.get("Hostname") or node
        endpoint = (status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}
        return str(host), int(endpoint.get("Port") or _KUBELET_PORT)


class PodKinds(msgspec.Struct, frozen=True, kw_only=True):
    """The kinds that the parts of pods have to do with."""

    pods: KindInfo
    nodes: KindInfo
    budgets: KindInfo


def _bound(pod: Json, binding: Json, node: str) -> Json:
    name = pod["metadata"]["name"]
    spec = pod.get("spec") or {}
    if pod["metadata"].get("deletionTimestamp"):
        raise conflict(_BINDING, name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
        raise conflict(_BINDING, name, why)
    if spec.get("schedulingGates"):
        raise conflict(_BINDING, name, f"pod {name} has non-empty .spec.schedulingGates")
    said = section(binding, "metadata")
    metadata = dict(pod["metadata"])
    uid = said.get("uid")
    if uid and uid != metadata["uid"]:
        why = (
            f"Precondition failed: UID in precondition: {uid}, UID in object meta: "
            f"{metadata['uid']}"
        )
        raise conflict(names.PODS, name, why)
    version = said.get("resourceVersion")
    if version and version != metadata["resourceVersion"]:
        why = (
            f"Precondition failed: ResourceVersion in precondition: {version}, "
            f"ResourceVersion in object meta: {metadata['resourceVersion']}"
        )
        raise conflict(names.PODS, name, why)
    for key in ("labels", "annotations"):
        if added := section(said, key):
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


def _container(pod: Json, wanted: str) -> str:
    spec = pod.get("spec") or {}
    name = pod["metadata"]["name"]
    regular = [each["name"] for each in spec.get("containers") or ()]
    initial = [each["name"] for each in spec.get("initContainers") or ()]
    other = [each["name"] for each in spec.get("ephemeralContainers") or ()]
    if wanted:
        if wanted not in (*regular, *initial, *other):
            raise bad_request(f"container {wanted} is not valid for pod {name}")
        return wanted
    default = (pod["metadata"].get("annotations") or {}).get(
        "kubectl.kubernetes.io/default-container"
    )
    if default in regular:
        return str(default)
    if len(regular) == 1 and not initial:
        return str(regular[0])
    text = (
        f"a container name must be specified for pod {name}, choose one of: [{' '.join(regular)}]"
    )
    if initial:
        text += f" or one of the init containers: [{' '.join(initial)}]"
    raise bad_request(text)
