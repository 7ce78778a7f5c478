"""Events in their two API groups."""

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.embedded_apiserver import embedded_server

from batholith.local.apiserver.builtin.event_conversion import from_core, to_core

NEW = "/apis/events.k8s.io/v1/namespaces/default/events"
CORE = "/api/v1/namespaces/default/events"

NEEDED = {
    "reportingInstance": "y-1",
    "action": "Look",
    "reason": "Looked",
    "type": "Normal",
    "eventTime": "2026-01-02T03:04:05.000006Z",
}


def event(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}, **fields}


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["note", "reason", "regarding", "type"]), st.text()))
def test_conversion_round_trips(fields: dict[str, str]) -> None:
    there = to_core(event(regarding={}) | fields)
    assert from_core(there) == event(regarding={}) | fields
    assert to_core(there) == there


async def test_both_groups_return_the_same_events(tmp_path: Path) -> None:
    body = event(
        note="hi",
        regarding={"kind": "Pod", "name": "p", "namespace": "default"},
        reportingController="x.io/y",
        **NEEDED,
    )
    async with embedded_server(tmp_path) as server:
        created = await server.request("POST", NEW, body)
        assert (created.status, created.body["note"]) == (201, "hi")
        seen = (await server.request("GET", f"{CORE}?fieldSelector=involvedObject.name=p")).body
        assert [each["message"] for each in seen["items"]] == ["hi"]
        assert seen["items"][0]["reportingComponent"] == "x.io/y"
        patched = await server.request(
            "PATCH", f"{CORE}/e", {"message": "ho"}, content_type="application/merge-patch+json"
        )
        assert patched.body["message"] == "ho"
        assert (await server.request("GET", f"{NEW}/e")).body["note"] == "ho"
        core = (await server.request("GET", f"{CORE}/e")).body
        assert (core["apiVersion"], core["message"]) == ("v1", "ho")
        assert core["eventTime"] == "2026-01-02T03:04:05.000006Z"
        listed = (await server.request("GET", NEW)).body["items"]
        assert [each["regarding"]["name"] for each in listed] == ["p"]
        assert (await server.request("DELETE", f"{NEW}/e")).status == 200
        assert (await server.request("GET", f"{CORE}/e")).status == 404


async def test_each_group_has_different_field_selectors(tmp_path: Path) -> None:
    body = event(regarding={"kind": "Pod", "name": "p"}, reportingController="x.io/y", reason="R")
    async with embedded_server(tmp_path) as server:
        for name, about in (("e", body), ("f", {**body, "reason": "S"})):
            await server.create(NEW, {**NEEDED, **about, "metadata": {"name": name}})
        for path, selector in (
            (NEW, "regarding.name=p,reportingController=x.io/y,reason=R"),
            (CORE, "involvedObject.name=p,reportingComponent=x.io/y,reason=R"),
        ):
            found = await server.get(f"{path}?fieldSelector={selector}")
            assert [each["metadata"]["name"] for each in found["items"]] == ["e"]
        for path, label in ((NEW, "involvedObject.name"), (CORE, "regarding.name")):
            refused = await server.request("GET", f"{path}?fieldSelector={label}=p")
            assert refused.body["message"] == f"field label not supported: {label}"
