"""Field ownership and server-side apply are those of a real API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from support.api_servers import RealServerFactory
from support.embedded_apiserver import MAPS, PODS, Server, embedded_server
from support.examples import examples
from support.field_ownership import (
    APPLY,
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    TYPED,
    Json,
    Normaliser,
    Write,
    apply,
    differences,
    typed_kind,
)
from support.polling import wait_until_true
from support.random_applies import histories

from batholith.model import crds

Writes = list[Write]


def config_map(data: Json | None = None, **metadata: Any) -> Json:
    body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", **metadata}}
    return body if data is None else {**body, "data": data}


A = f"{MAPS}/a"


def pod(image: str = "one", **spec: Any) -> Json:
    container = {"name": "c", "image": image}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {"app": "x"}},
        "spec": {"containers": [container], "automountServiceAccountToken": False, **spec},
    }


P = f"{PODS}/p"


def typed(spec: Json | None = None, status: Json | None = None, **metadata: Any) -> Json:
    body: Json = {
        "apiVersion": "ownership.example.com/v1",
        "kind": "Typed",
        "metadata": {"name": "t", **metadata},
    }
    if spec is not None:
        body["spec"] = spec
    return body if status is None else {**body, "status": status}


T = f"{TYPED}/t"

T2 = T.replace("/v1/", "/v2/")
EVENTS = "/api/v1/namespaces/default/events"
NEW_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
DUPLICATES = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  x: y\n  x: z\n"


def typed_2(spec: Json) -> Json:
    return {**typed(spec), "apiVersion": "ownership.example.com/v2"}


def event() -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "r",
        "message": "m",
        "type": "Normal",
        "count": 1,
    }


def namespace(name: str, **metadata: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, **metadata}}


def deployment(**spec: Any) -> Json:
    template = {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template, **spec},
    }


def entry(manager: str, *keys: str) -> Json:
    """Fields of the data that a manager has applied."""
    return {
        "manager": manager,
        "operation": "Apply",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {f"f:{key}": {} for key in keys}} if keys else {},
    }


def scale(name: str, replicas: int) -> Json:
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {"name": name},
        "spec": {"replicas": replicas},
    }


SCENARIOS: dict[str, Writes] = {
    "create and update": [
        Write("POST", MAPS, config_map({"a": "1"}, labels={"x": "y"}), agent="kubectl/v1.36 (x)"),
        Write("PUT", A, config_map({"a": "2", "b": "1"}), agent="other"),
        Write("PATCH", f"{A}?fieldManager=third", {"data": {"b": None, "c": "1"}}, MERGE),
        Write("PATCH", f"{A}?fieldManager=third", {"data": {"c": "1"}}, MERGE),
        Write("PATCH", A, {"data": {"d": "1"}}, STRATEGIC, agent=""),
        Write("PATCH", A, [{"op": "remove", "path": "/data"}], JSON_PATCH),
        Write("GET", A),
    ],
    "apply, conflict and force": [
        apply(A, "one", config_map({"a": "1", "b": "1"})),
        apply(A, "two", config_map({"a": "2"})),
        apply(A, "two", config_map({"a": "2", "b": "3"})),
        apply(A, "two", config_map({"a": "2"}), "&force=true"),
        apply(A, "two", config_map({"a": "2"}), "&force=true"),
        apply(A, "one", config_map({"b": "1"})),
        apply(A, "three", config_map({"a": "2", "b": "1"})),
        apply(A, "one", config_map()),
        apply(A, "two", config_map()),
        apply(A, "three", config_map({})),
        Write("GET", A),
    ],
    "apply of what an update owns": [
        Write("POST", MAPS, config_map({"a": "1", "b": "1"}), agent="kubectl-create"),
        apply(A, "one", config_map({"a": "1"})),
        apply(A, "one", config_map({"a": "2"})),
        apply(A, "one", config_map({"a": "2"}), "&force=true&dryRun=All"),
        apply(A, "one", config_map({"a": "2"}), "&force=true"),
        apply(A, "one", config_map()),
        Write("PUT", A, config_map({"b": "1"}), agent="kubectl-create"),
        Write("GET", A),
    ],
    "resets of managed fields": [
        apply(A, "one", config_map({"a": "1"})),
        Write("PATCH", A, {"metadata": {"managedFields": [{}]}}, MERGE),
        Write("PATCH", A, {"data": {"b": "1"}}, MERGE),
        apply(A, "two", config_map({"c": "1"})),
        apply(A, "two", config_map({"a": "2"})),
        Write("PATCH", A, {"metadata": {"managedFields": []}}, MERGE),
        Write("PATCH", A, {"metadata": {"managedFields": None}}, MERGE),
        apply(A, "two", config_map({"c": "1"})),
        Write("PATCH", A, [{"op": "remove", "path": "/metadata/managedFields/0"}], JSON_PATCH),
        Write("PUT", A, config_map({"c": "2"}, managedFields=[{"manager": "x"}])),
        Write(
            "PUT",
            A,
            config_map(
                {"c": "2"},
                managedFields=[entry("x", "c")],
            ),
        ),
        apply(A, "x", config_map()),
        Write("GET", A),
    ],
    "a namespace that does not exist": [
        apply(A.replace("default", "none"), "one", config_map({"a": "1"}, namespace="none")),
    ],
    "entries in a new object": [
        Write("POST", MAPS, config_map({"a": "1"}, managedFields=[entry("x"), entry("y", "b")])),
        apply(A, "y", config_map({"b": "1"})),
        Write("PUT", A, config_map({"a": "1", "b": "1"}, managedFields=[entry("z", "a")])),
        Write("PUT", A, config_map({"a": "1", "b": "1"}, managedFields=[entry("z")])),
        Write("GET", A),
    ],
    "errors": [
        Write("PATCH", A, config_map({"a": "1"}), APPLY),
        apply(A, "one", {**config_map(), "kind": "Secret"}),
        apply(A, "one", {**config_map(), "apiVersion": "v2"}),
        apply(A, "one", {"metadata": {"name": "a"}}),
        apply(A, "one", config_map(managedFields=[])),
        apply(A, "one", config_map(managedFields=[{"manager": "x"}])),
        apply(A, "one", config_map(name="b")),
        apply(A, "one", {"apiVersion": "v1", "kind": "ConfigMap"}),
        apply(A, "one", config_map(namespace="other")),
        apply(A, "one", config_map(resourceVersion="1")),
        apply(A, "one", config_map(uid="x")),
        apply(A, "one", {**config_map(), "foo": 1}),
        apply(A, "one", config_map({"a": 1})),
        apply(A, "one", config_map({"a": {"b": "c"}})),
        Write("PATCH", f"{A}?fieldManager=one", b"a: b: c", APPLY),
        Write("PATCH", f"{A}?fieldManager=one", b"[]", APPLY),
        Write("PATCH", f"{A}?fieldManager=one&force=x", config_map(), MERGE),
        apply(A, "one", config_map({"a": "1"})),
        apply(A, "one", config_map({"a": "2"}, resourceVersion="1")),
        apply(A, "one", config_map({"a": "2"}, uid="x")),
        apply(A, "one", config_map({"a": None})),
        apply(A, "one", config_map({"a": "3"}, labels=None)),
        apply(A, "one", config_map({"a": "3"}, labels={"-": "x"})),
    ],
    "pods": [
        apply(P, "one", pod()),
        apply(P, "two", pod("two")),
        apply(P, "two", pod("two"), "&force=true"),
        apply(P, "one", pod(containers=[{"name": "c"}])),
        Write("PATCH", f"{P}/status", {"status": {"phase": "Running"}}, MERGE, agent="kubelet"),
        Write("PATCH", f"{P}/status", {"status": {"phase": "Running"}}, MERGE, agent="kubelet"),
        Write("PATCH", P, {"metadata": {"labels": {"b": "c"}}}, STRATEGIC, agent="kubectl-label"),
        apply(
            f"{P}/status",
            "conditions",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "p"},
                "status": {"conditions": [{"type": "Mine", "status": "True"}]},
            },
        ),
        apply(
            f"{P}/status",
            "phases",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "p"},
                "status": {"phase": "Failed"},
            },
        ),
        Write("GET", P),
    ],
    "created pod": [
        Write(
            "POST",
            PODS,
            pod(
                tolerations=[{"key": "a", "operator": "Exists"}],
                volumes=[{"name": "v", "emptyDir": {}}],
                containers=[
                    {
                        "name": "c",
                        "image": "i",
                        "env": [{"name": "A", "value": "b"}],
                        "ports": [{"containerPort": 80}, {"containerPort": 81, "protocol": "UDP"}],
                        "resources": {"requests": {"cpu": "1"}},
                        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                        "command": ["a", "b"],
                        "livenessProbe": {"exec": {"command": ["a"]}},
                    }
                ],
            ),
            agent="kubectl/v1",
        ),
    ],
    "custom kind": [
        apply(T, "one", typed({"items": [{"name": "a", "value": 1}], "set": ["x", "y"]})),
        apply(T, "two", typed({"items": [{"name": "b", "value": 1}], "set": ["z"]})),
        apply(T, "two", typed({"items": [{"name": "a", "value": 2}]})),
        apply(T, "one", typed({"items": [{"name": "a", "protocol": "UDP"}], "set": ["y"]})),
        apply(T, "one", typed({"list": [1, 2], "map": {"a": "b"}, "whole": {"a": "b"}})),
        apply(T, "two", typed({"list": [1], "map": {"b": "b"}, "whole": {"b": "b"}})),
        apply(T, "two", typed({"list": [1], "map": {"b": "b"}}), "&force=true"),
        apply(T, "two", typed({"free": {"a": {"b": [1], "c": 2}}, "any": {"a": 1}, "size": 1})),
        apply(T, "one", typed({"free": {"a": {"c": 3}}, "any": [1], "size": "1"})),
        apply(T, "one", typed({"free": {"a": {"c": 3}}}), "&force=true"),
        apply(T, "one", typed({"free": {}}), "&force=true"),
        apply(T, "one", typed({"set": ["a", "a"]})),
        apply(T, "one", typed({"items": [{"name": "a"}, {"name": "a"}]})),
        apply(T, "one", typed({"items": [{"value": 1}]})),
        apply(T, "one", typed({"unknown": 1})),
        apply(T, "one", typed({"replicas": "x"})),
        apply(T, "one", typed({"map": {}, "items": [], "set": []})),
        apply(T, "one", typed()),
        apply(T, "two", typed()),
        Write("GET", T),
    ],
    "status of a custom kind": [
        Write("POST", TYPED, typed({"replicas": 1}, {"phase": "x"}), agent="creator"),
        apply(f"{T}/status", "one", typed({"replicas": 2}, {"phase": "y"}, labels={"a": "b"})),
        apply(f"{T}/status", "two", typed(None, {"phase": "z", "counts": {"a": "1"}})),
        apply(T, "one", typed({"mode": "x"}, {"phase": "q"})),
        Write("PATCH", f"{T}/status", {"status": {"phase": "r"}}, MERGE, agent="ctrl"),
        Write("PATCH", f"{T}/scale", {"spec": {"replicas": 3}}, MERGE, agent="scaler"),
        apply(T, "one", typed({"replicas": 4})),
        apply(f"{T}/status", "one", typed(None, {})),
        Write("GET", T),
    ],
    "two versions of a custom kind": [
        apply(T, "one", typed({"set": ["x"], "map": {"a": "1"}, "replicas": 1})),
        apply(T2, "two", typed_2({"set": ["x"], "map": {"b": "1"}})),
        apply(T2, "two", typed_2({"set": ["y"], "map": {"a": "2"}})),
        apply(T2, "two", typed_2({"set": ["y"], "map": {"a": "2"}}), "&force=true"),
        apply(T, "one", typed({"set": ["x"], "map": {"a": "1"}})),
        apply(T2, "one", typed_2({"replicas": 1})),
        apply(T2, "one", typed_2({"replicas": 2})),
        Write("PATCH", f"{T2}?fieldManager=three", {"spec": {"set": ["z"]}}, MERGE),
        Write("PATCH", f"{T}?fieldManager=three", {"spec": {"set": ["z", "a"]}}, MERGE),
        apply(T, "two", typed()),
        Write("GET", T),
        Write("GET", T2),
    ],
    "an embedded object": [
        apply(T, "one", typed({"template": pod()})),
        apply(T, "two", typed({"template": {**pod("two"), "more": {"a": [1]}}})),
        apply(T, "two", typed({"template": {**pod(), "more": {"a": [1]}}})),
        apply(T, "one", typed({"template": {**pod("three"), "metadata": {"name": "q"}}})),
    ],
    "events in both groups": [
        Write("POST", EVENTS, event(), agent="creator"),
        apply(f"{EVENTS}/e", "one", {**event(), "message": "again"}),
        apply(f"{EVENTS}/e", "one", {**event(), "message": "again"}, "&force=true"),
        Write("PATCH", f"{NEW_EVENTS}/e?fieldManager=two", {"note": "x"}, MERGE),
        Write("PATCH", f"{EVENTS}/e?fieldManager=two", {"count": 5}, MERGE),
        # What the server adds to an event of the other group differs.
    ],
    "a namespace": [
        apply("/api/v1/namespaces/n1", "one", namespace("n1", labels={"a": "b"})),
        apply("/api/v1/namespaces/n1", "two", namespace("n1", labels={"a": "c"})),
    ],
    "scale of a Deployment": [
        apply(f"{DEPLOYMENTS}/d", "one", deployment(replicas=1)),
        Write("PATCH", f"{DEPLOYMENTS}/d/scale", {"spec": {"replicas": 2}}, MERGE, agent="hpa"),
        apply(f"{DEPLOYMENTS}/d", "one", deployment(replicas=1)),
        apply(f"{DEPLOYMENTS}/d", "one", deployment()),
        apply(f"{DEPLOYMENTS}/d/scale", "two", scale("d", 3)),
        Write("GET", f"{DEPLOYMENTS}/d"),
        apply(f"{DEPLOYMENTS}/d/scale", "two", scale("d", 3), "&force=true"),
        apply(f"{DEPLOYMENTS}/d/scale", "two", scale("d", 3), "&force=true"),
        apply(f"{DEPLOYMENTS}/d/scale", "three", scale("d", 4)),
        apply(f"{DEPLOYMENTS}/d", "one", deployment(replicas=4)),
        Write("GET", f"{DEPLOYMENTS}/d"),
        apply(f"{DEPLOYMENTS}/d/scale", "two", {**scale("d", 3), "kind": "Deployment"}),
        apply(f"{DEPLOYMENTS}/d/scale", "two", scale("d", -1)),
        apply(f"{DEPLOYMENTS}/d/scale", "two", scale("e", 1)),
        apply(f"{DEPLOYMENTS}/e/scale", "two", scale("e", 1)),
    ],
    "duplicate fields": [
        Write("PATCH", f"{A}?fieldManager=one", DUPLICATES, APPLY),
        Write("PATCH", f"{A}?fieldManager=one&fieldValidation=Strict", DUPLICATES, APPLY),
        Write("PATCH", f"{A}?fieldManager=one&fieldValidation=Ignore", DUPLICATES, APPLY),
    ],
    "kubectl's migration": [
        Write(
            "POST",
            MAPS,
            config_map(
                {"a": "1", "b": "1"},
                annotations={
                    "kubectl.kubernetes.io/last-applied-configuration": (
                        '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},'
                        '"data":{"a":"1","b":"1"}}'
                    )
                },
            ),
            agent="kubectl-client-side-apply",
        ),
        apply(A, "kubectl", config_map({"a": "2"})),
        Write("PATCH", f"{A}?fieldManager=x", {"data": {"a": "4"}}, MERGE),
        apply(A, "kubectl", config_map({"a": "3"})),
        Write("GET", A),
    ],
    "many managers": [
        # The oldest entries are merged, by second and then by name. So the order of the names is
        # that of the writes: in which of them a second ends has no effect.
        Write("POST", MAPS, config_map({"a": "1"}), agent="a/1"),
        *(
            Write("PATCH", f"{A}?fieldManager=m{n:02}", {"data": {f"k{n}": "1"}}, MERGE)
            for n in range(13)
        ),
        Write("GET", A),
    ],
}


@asynccontextmanager
async def _open_both(
    real: RealServerFactory, directory: Path
) -> AsyncIterator[tuple[Server, Server]]:
    """A real server and an embedded one, which have the kind."""
    async with (
        real.start(directory) as theirs,
        embedded_server(directory / "embedded", crds=crds.load()) as ours,
    ):
        for server in (theirs, ours):
            await server.install_crds(typed_kind())
        yield theirs, ours


@pytest.fixture
async def both(real: RealServerFactory, tmp_path: Path) -> AsyncIterator[tuple[Server, Server]]:
    async with _open_both(real, tmp_path) as servers:
        yield servers


async def _compare(
    theirs: Server,
    ours: Server,
    writes: Writes,
    normalisers: tuple[Normaliser, Normaliser] | None = None,
) -> list[str]:
    """Send *writes* to both servers; return where their responses differ."""
    left, right = normalisers or (Normaliser(), Normaliser())
    found: list[str] = []
    for number, write in enumerate(writes):
        wanted = left.response(await write.send(theirs))
        got = right.response(await write.send(ours))
        found += (f"{number} {write.method} {each}" for each in differences(wanted, got))
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_both_servers_agree_about_owners(both: tuple[Server, Server], scenario: str) -> None:
    found = await _compare(*both, SCENARIOS[scenario])
    assert not found, "\n".join(found)


async def test_fields_that_a_new_schema_makes_atomic_are_owned_as_a_whole(
    both: tuple[Server, Server],
) -> None:
    spec = {"items": [{"name": "a", "value": 1}], "map": {"a": "1"}, "set": ["x"]}
    before = [
        apply(T, "one", typed(spec)),
        Write("PATCH", f"{T}?fieldManager=two", {"spec": {"map": {"b": "1"}}}, MERGE),
    ]
    after = [
        apply(T, "three", typed({"map": {"a": "2"}})),
        apply(T, "one", typed({"map": {"a": "1"}})),
        Write("PATCH", f"{T}?fieldManager=two", {"spec": {"replicas": 2}}, MERGE),
        Write("GET", T),
    ]
    normalisers = Normaliser(), Normaliser()
    found = await _compare(*both, before, normalisers)
    for server in both:
        path = (
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/typeds.ownership.example.com"
        )
        changed = {"spec": typed_kind(atomic=True)["spec"]}
        response = await server.request("PATCH", path, changed, content_type=MERGE)
        assert response.status == 200, response.body
        probe = apply(f"{T}?dryRun=All&fieldManager=probe", "probe", typed({"map": {"z": "1"}}))

        async def follows(server: Server = server, probe: Write = probe) -> bool:
            causes = (await probe.send(server)).body.get("details", {}).get("causes", [])
            return any(each["field"] == ".spec.map" for each in causes)

        await wait_until_true(follows)
    found += await _compare(*both, after, normalisers)
    assert not found, "\n".join(found)


def test_random_writes_have_the_same_effect_on_both_servers(
    real: RealServerFactory, tmp_path: Path
) -> None:
    names = (f"o{number}" for number in count())
    with asyncio.Runner() as runner:
        opened = _open_both(real, tmp_path)
        servers = runner.run(opened.__aenter__())

        @settings(max_examples=examples(150))
        @given(histories())
        def check(history: Writes) -> None:
            name = next(names)
            found = runner.run(_compare(*servers, [write.named(name) for write in history]))
            assert not found, "\n".join(found)

        try:
            check()
        finally:
            runner.run(opened.__aexit__(None, None, None))
