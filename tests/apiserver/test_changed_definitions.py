"""A changed definition of a custom kind counts for the objects that were stored before."""

from pathlib import Path
from typing import Any

from support.api_servers import add_namespace
from support.embedded_apiserver import DEFINITIONS, FOOS, MERGE, Server, definition, embedded_server
from support.polling import wait_until_true

from batholith.model.names import NAMESPACES

Json = dict[str, Any]
STRING = {"type": "string"}


def with_fields(**fields: Json) -> Json:
    crd = definition()
    spec = {"type": "object", "properties": fields}
    schema = {"type": "object", "properties": {"spec": spec}}
    crd["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": schema}
    return crd


async def change(server: Server, **fields: Json) -> None:
    """Replace the fields of the definition."""
    crd = with_fields(**fields)
    path = f"{DEFINITIONS}/{crd['metadata']['name']}"
    body = {"spec": {"versions": crd["spec"]["versions"]}}
    changed = await server.request("PATCH", path, body, content_type=MERGE)
    assert changed.status == 200, changed.body


async def wait_shown(server: Server, **spec: str) -> Json:
    """Wait until the object has this spec in all kinds of reads."""

    async def is_shown() -> bool:
        one, all_ = [await server.request("GET", path) for path in (f"{FOOS}/a", FOOS)]
        if (one.status, all_.status) != (200, 200):
            return False  # a real server rejects reads while it applies the definition
        return bool(one.body["spec"] == all_.body["items"][0]["spec"] == spec)

    await wait_until_true(is_shown)
    found: Json = await server.get(f"{FOOS}/a")
    return found


async def test_new_defaults_are_shown_without_a_new_version(server: Server) -> None:
    await server.install_crds(with_fields(a=STRING, b=STRING))
    body = {"apiVersion": "ex.io/v1", "kind": "Foo", "metadata": {"name": "a"}, "spec": {}}
    created = await server.create(FOOS, body)
    await change(server, a={**STRING, "default": "A"}, b=STRING)
    shown = await wait_shown(server, a="A")
    assert shown["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
    async with server.watch(f"{FOOS}?watch=1") as lines:
        assert (await lines.next())["object"]["spec"] == {"a": "A"}
    await change(server, a=STRING, b={**STRING, "default": "B"})
    await wait_shown(server, b="B")
    await server.request("PATCH", f"{FOOS}/a", {"metadata": {"labels": {"x": "y"}}},
                         content_type=MERGE)  # fmt: skip
    await change(server, a=STRING, b=STRING)
    await wait_shown(server, b="B")


async def test_fields_that_a_definition_no_longer_has_are_hidden(server: Server) -> None:
    await server.install_crds(with_fields(a=STRING, b=STRING))
    body = {"apiVersion": "ex.io/v1", "kind": "Foo", "metadata": {"name": "a"}}
    await server.create(FOOS, {**body, "spec": {"a": "1", "b": "2"}})
    await change(server, a=STRING)
    await wait_shown(server, a="1")
    await change(server, a=STRING, b=STRING)
    await wait_shown(server, a="1", b="2")


async def test_what_is_stored_is_shown_by_the_present_definition_after_a_restart(
    tmp_path: Path,
) -> None:
    async with embedded_server(tmp_path) as server:
        await server.install_crds(with_fields(a=STRING, b=STRING))
        body = {"apiVersion": "ex.io/v1", "kind": "Foo", "metadata": {"name": "a"}}
        await server.create(FOOS, {**body, "spec": {"b": "2"}})
        await change(server, a={**STRING, "default": "A"})
        await wait_shown(server, a="A")
    async with embedded_server(tmp_path) as server:
        await wait_shown(server, a="A")
        await change(server, a=STRING, b=STRING)
        await wait_shown(server, b="2")


async def test_objects_whose_stored_version_is_not_served_are_deleted_with_their_namespace(
    server: Server,
) -> None:
    crd = with_fields(a=STRING)
    (served,) = crd["spec"]["versions"]
    stored = {**served, "name": "v2", "served": False, "storage": True}
    crd["spec"]["versions"] = [{**served, "storage": False}, stored]
    await server.install_crds(crd)
    await add_namespace(server, "deleted")
    path = FOOS.replace("/default/", "/deleted/")
    body = {"apiVersion": "ex.io/v1", "kind": "Foo", "metadata": {"name": "a"}, "spec": {"a": "b"}}
    await server.create(path, body)
    await server.request("DELETE", NAMESPACES.path("", "deleted"))

    async def is_deleted() -> bool:
        return (await server.request("GET", NAMESPACES.path("", "deleted"))).status == 404

    await wait_until_true(is_deleted)
    assert (await server.request("GET", f"{path}/a")).status == 404
