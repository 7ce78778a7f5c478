"""Every built-in kind: both servers return the same fields, and the Python client decodes them.

For each kind there is a minimal object and a full one: the second has all fields of the published
schema that a real server accepts together.
"""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import kubernetes.client
import support.samples as samples
from support.api_servers import RealServerFactory, ServerFactory
from support.embedded_apiserver import MERGE, PODS, RawResponse, Server, embedded_server
from support.polling import wait_until_true
from support.response_comparison import ResponseComparison

from batholith.local.apiserver.kinds.info import KindInfo

Json = dict[str, Any]
api: Any = kubernetes.client
"""The Python client, whose models have fewer fields than the server."""

EXPECTED_DIFFERENCES: Mapping[str, Mapping[str, str]] = {
    "PersistentVolumeClaim": {
        ".spec.dataSource": "what a claim is to be filled with is named in why it stays pending",
    },
    "Service": {".spec.clusterIP": "addresses of another network"},
    "Job": {"controller-uid": "not the same Job"},
}
"""By kind: substrings of accepted differences, and why; see docs/differences.md."""

_ALPHA_VERSIONS = ("v1alpha2",)
"""Versions of Kubernetes 1.36 that the installed Python client does not have."""

CONTROLLED_KINDS = (
    "APIService",
    "CustomResourceDefinition",
    "FlowSchema",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "ResourceQuota",
)
"""Kinds whose objects controllers change immediately."""

_ROUNDS = 60


async def create_until_accepted(
    server: Server, method: str, path: str, obj: Json, minimum: Json
) -> RawResponse:
    """Send *obj*, without the fields that the server rejects, until it accepts it."""
    for _ in range(_ROUNDS):
        response = await server.request(method, path, obj)
        if response.status in (200, 201):
            return response
        if method == "PUT" and response.status == 409:  # the real server updates some kinds itself
            current = (await server.get(path))["metadata"]["resourceVersion"]
            obj["metadata"]["resourceVersion"] = current
            continue
        assert samples.remove_invalid_fields(obj, minimum, response.body), response.body
    raise AssertionError(f"{path} never passes")


async def remove(server: Server, kind: KindInfo) -> None:
    """Remove the sample immediately."""
    path = samples.sample_path(kind, samples.sample_name(kind))
    await server.request("DELETE", f"{path}?gracePeriodSeconds=0")
    if kind.resource.kind == "Namespace":
        body = {"metadata": {"name": samples.sample_name(kind)}, "spec": {"finalizers": []}}
        await server.request("PUT", f"{path}/finalize", body)
    await server.request("PATCH", path, {"metadata": {"finalizers": None}}, content_type=MERGE)

    async def is_deleted() -> bool:
        return (await server.request("GET", path)).status == 404

    await wait_until_true(is_deleted)


def differences(kind: KindInfo, theirs: Json, ours: Json) -> list[str]:
    """Return the differences between two responses, without accepted ones."""
    theirs["metadata"].pop("managedFields", None)
    known = EXPECTED_DIFFERENCES.get(kind.resource.kind, {})
    found = ResponseComparison().differences(theirs, ours)
    return [each for each in found if not any(text in each for text in known)]


async def assert_same_object(kind: KindInfo, obj: Json, real: Server, ours: Server) -> list[str]:
    """Create *obj* on both, without what the real one rejects, and compare the responses."""
    path, named = samples.sample_path(kind), samples.sample_path(kind, samples.sample_name(kind))
    theirs = (
        await create_until_accepted(real, "POST", path, obj, samples.minimal_sample(kind))
    ).body
    found = differences(kind, theirs, await ours.create(path, obj))
    if kind.resource.kind in CONTROLLED_KINDS:
        return found
    theirs, mine = await real.get(named), await ours.get(named)
    found += differences(kind, theirs, mine)
    status = samples.full_sample(kind).get("status")
    if kind.has_status and status:
        theirs["status"] = status
        least = {**theirs, "status": {}}
        response = await create_until_accepted(real, "PUT", f"{named}/status", theirs, least)
        mine["status"] = theirs["status"]
        updated = await ours.request("PUT", f"{named}/status", mine)
        assert updated.status == 200, updated.body
        found += differences(kind, response.body, updated.body)
    return found


async def test_both_servers_return_the_same_fields(real: RealServerFactory, tmp_path: Path) -> None:
    found: dict[str, list[str]] = {}
    async with (
        real.start(tmp_path) as one,  # without controllers
        embedded_server(tmp_path, node_lifecycle=False) as other,
    ):
        for kind in samples.KINDS:
            for obj in (samples.minimal_sample(kind), samples.accepted_sample(kind)):
                if differs := await assert_same_object(kind, obj, one, other):
                    found.setdefault(kind.resource.kind, []).extend(differs)
                await asyncio.gather(remove(one, kind), remove(other, kind))
    assert found == {}


class TypedClient:
    """The Python client's methods of one kind."""

    def __init__(self, kind: KindInfo, client: Any) -> None:
        resource = kind.resource
        group = "".join(map(str.capitalize, resource.group.removesuffix(".k8s.io").split(".")))
        named = f"{group or 'Core'}{resource.version.capitalize()}Api"
        self._api = getattr(api, named)(client)
        self._kind = "namespaced_" * resource.namespaced + _snake(resource.kind)
        self._namespace_args = {"namespace": "default"} if resource.namespaced else {}
        self._name = samples.sample_name(kind)

    def __call__(self, verb: str, **arguments: Any) -> Any:
        """Call the method of a verb; all but those of collections name the object."""
        named = {} if verb in ("create", "list") else {"name": self._name}
        return getattr(self._api, f"{verb}_{self._kind}")(
            **named, **self._namespace_args, **arguments
        )


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


@asynccontextmanager
async def python_client(servers: ServerFactory, data_dir: Path) -> AsyncIterator[Any]:
    async with servers.start(data_dir) as server:
        settings = api.Configuration()
        settings.host = server.url
        settings.ssl_ca_cert = str(server.pki.ca)
        settings.api_key = {"BearerToken": f"Bearer {server.tokens['admin']}"}
        with api.ApiClient(settings) as client:
            yield client


def _lost_fields(sent: Any, got: Any, path: str = "") -> Iterator[str]:
    """Yield where something that was sent is not in the response."""
    if isinstance(sent, dict) and isinstance(got, dict):
        for key in sent.keys() - {"managedFields"}:
            value = sent[key]
            yield from _lost_fields(value, got.get(key), f"{path}.{key}")
    elif isinstance(sent, list) and isinstance(got, list) and len(sent) == len(got):
        for index, (left, right) in enumerate(zip(sent, got, strict=True)):
            yield from _lost_fields(left, right, f"{path}[{index}]")
    elif sent != got and not path.endswith(("resourceVersion", "generation", "Time")):
        yield f"{path}: {sent} became {got}"


def _replaced(call: TypedClient) -> tuple[Any, Any]:
    """Replace the sample; controllers may write, too."""
    while True:
        found = call("read")
        found.metadata.labels = {**(found.metadata.labels or {}), "by": "put"}
        with suppress(api.exceptions.ConflictException):
            return found, call("replace", body=found)


def _round_trip(kind: KindInfo, client: Any) -> list[str]:
    """Use every verb on a sample; return what was lost."""
    call, sent = TypedClient(kind, client), samples.minimal_sample(kind)
    as_json = client.sanitize_for_serialization
    created = call("create", body=sent)
    lost = [*_lost_fields(sent, as_json(created))]
    found = call("read")
    lost += _lost_fields(as_json(created) | {"status": None}, as_json(found) | {"status": None})
    listed = [each for each in call("list").items if each.metadata.name == found.metadata.name]
    lost += _lost_fields(sent["metadata"], as_json(listed[0].metadata))
    found, changed = _replaced(call)
    lost += _lost_fields(as_json(found) | {"status": None}, as_json(changed) | {"status": None})
    patched = call("patch", body={"metadata": {"labels": {"by": "patch"}}})
    assert patched.metadata.labels["by"] == "patch"
    call("delete")
    return lost


async def test_the_python_client_supports_every_verb_of_every_kind(
    servers: ServerFactory, tmp_path: Path
) -> None:
    lost = {}
    async with python_client(servers, tmp_path) as client:
        known = [each for each in samples.KINDS if each.resource.version not in _ALPHA_VERSIONS]
        for kind in known:
            lost[kind.resource.kind] = await asyncio.to_thread(_round_trip, kind, client)
    assert {kind: each for kind, each in lost.items() if each} == {}


async def test_the_python_client_decodes_a_node_without_status(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with python_client(servers, tmp_path) as client:
        core = api.CoreV1Api(client)
        await asyncio.to_thread(core.create_node, {"metadata": {"name": "n"}})
        (node,) = (await asyncio.to_thread(core.list_node)).items
    assert node.status.node_info.kubelet_version == ""
    assert node.status.daemon_endpoints.kubelet_endpoint.port == 0


async def test_an_object_stored_by_an_older_version_can_be_updated(tmp_path: Path) -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "a:1"}]}}
    async with embedded_server(tmp_path) as server:
        await server.create(PODS, pod)
    with sqlite3.connect(tmp_path / "cluster.db") as stored:
        less = "CAST(replace(CAST(data AS TEXT), '\"resources\":{},', '') AS BLOB)"
        stored.execute(f"UPDATE objects SET data = {less} WHERE plural = 'pods'")
    async with embedded_server(tmp_path) as server:
        found = await server.get(f"{PODS}/p")
        assert "resources" not in found["spec"]["containers"][0]
        found["metadata"]["labels"] = {"a": "b"}
        response = await server.request("PUT", f"{PODS}/p", found)
        assert response.status == 200, response.body
    assert response.body["metadata"]["generation"] == 1
    assert response.body["spec"]["containers"][0]["resources"] == {}
