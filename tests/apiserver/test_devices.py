"""ResourceClaims, their templates, DeviceClasses and ResourceSlices, on both servers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory
from support.embedded_apiserver import MERGE, Server, pod

from batholith.model import names
from batholith.model.names import Resource

Json = dict[str, Any]
BAD = "Not_A_Name"
CLASS = {"deviceClassName": "gpu"}


def claim(name: str = "c", *requests: Json, **devices: Any) -> Json:
    wanted = list(requests) or [{"name": "r", "exactly": CLASS}]
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": wanted, **devices}}}


def exactly(**fields: Any) -> Json:
    return claim("c", {"name": "r", "exactly": {**CLASS, **fields}})


def selector(expression: str) -> Json:
    return {"cel": {"expression": expression}}


def device_class(**spec: Any) -> Json:
    return {"metadata": {"name": "gpu"}, "spec": spec}


def device_slice(*devices: Json, **spec: Any) -> Json:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    found = {"driver": "gpu.example.com", "nodeName": "n", "pool": pool, "devices": list(devices)}
    kept = {key: value for key, value in (found | spec).items() if value is not None}
    return {"metadata": {"name": "s"}, "spec": kept}


def shared(**policy: Any) -> Json:
    capacity = {"memory": {"value": "10", "requestPolicy": policy}}
    return device_slice({"name": "d", "allowMultipleAllocations": True, "capacity": capacity})


def taint_rule(**taint: Any) -> Json:
    return {"metadata": {"name": "r"}, "spec": {"taint": {"key": "broken", **taint}}}


EXACTLY = "spec.devices.requests[0].exactly"
DEVICE = "spec.devices[0]"
CLAIMS, CLASSES = names.RESOURCECLAIMS, names.DEVICECLASSES
TEMPLATES, SLICES = names.RESOURCECLAIMTEMPLATES, names.RESOURCESLICES
RULES = names.DEVICETAINTRULES
SELECTED = ("driver", "pool", "device")
TAINT = {"key": "broken", "effect": "NoSchedule"}
REJECTED: tuple[tuple[Resource, Json, tuple[str, ...]], ...] = (
    (CLAIMS, claim("c", {"name": "r"}), ("spec.devices.requests[0]",)),
    (
        CLAIMS,
        claim("c", {"name": "r", "exactly": CLASS, "firstAvailable": [{"name": "s", **CLASS}]}),
        ("spec.devices.requests[0]",),
    ),
    (CLAIMS, claim("c", {"name": BAD, "exactly": CLASS}), ("spec.devices.requests[0].name",)),
    (
        CLAIMS,
        claim("c", {"name": "r", "exactly": CLASS}, {"name": "r", "exactly": CLASS}),
        ("spec.devices.requests[1]",),
    ),
    (CLAIMS, exactly(deviceClassName=BAD), (f"{EXACTLY}.deviceClassName",)),
    (CLAIMS, exactly(allocationMode="Some"), (f"{EXACTLY}.allocationMode",)),
    (CLAIMS, exactly(allocationMode="All", count=2), (f"{EXACTLY}.count",)),
    (CLAIMS, exactly(count=-1), (f"{EXACTLY}.count",)),
    (CLAIMS, exactly(selectors=[{}]), (f"{EXACTLY}.selectors[0].cel",)),
    (
        CLAIMS,
        exactly(selectors=[selector("device.nothing == 1")]),
        (f"{EXACTLY}.selectors[0].cel.expression",),
    ),
    (
        CLAIMS,
        exactly(selectors=[selector("device.driver")]),
        (f"{EXACTLY}.selectors[0].cel.expression",),
    ),
    (
        CLAIMS,
        exactly(selectors=[selector("1 +")]),
        (f"{EXACTLY}.selectors[0].cel.expression",),
    ),
    (
        CLAIMS,
        exactly(selectors=[selector("x" * 11_000)]),
        (f"{EXACTLY}.selectors[0].cel.expression",),
    ),
    (
        CLAIMS,
        exactly(tolerations=[{"operator": "Exists", "value": "v"}, {"operator": "Some"}]),
        (f"{EXACTLY}.tolerations[0].value", f"{EXACTLY}.tolerations[1].operator"),
    ),
    (CLAIMS, exactly(adminAccess=True), ("spec.devices.requests[0].adminAccess",)),
    (
        CLAIMS,
        claim("c", {"name": "r", "firstAvailable": [{"name": "s", **CLASS}, {"name": "s"}]}),
        (
            "spec.devices.requests[0].firstAvailable[1]",
            "spec.devices.requests[0].firstAvailable[1].deviceClassName",
        ),
    ),
    (CLAIMS, claim("c", constraints=[{"requests": ["r"]}]), ("spec.devices.constraints[0]",)),
    (
        CLAIMS,
        claim("c", constraints=[{"requests": ["s"], "matchAttribute": "model"}]),
        (
            "spec.devices.constraints[0].matchAttribute",
            "spec.devices.constraints[0].requests[0]",
        ),
    ),
    (CLAIMS, claim("c", config=[{}]), ("spec.devices.config[0].opaque",)),
    (
        CLAIMS,
        claim("c", config=[{"opaque": {"driver": BAD, "parameters": "text"}}]),
        (
            "spec.devices.config[0].opaque.driver",
            "spec.devices.config[0].opaque.parameters",
        ),
    ),
    (
        TEMPLATES,
        {"metadata": {"name": "t"}, "spec": {"spec": exactly(count=-1)["spec"]}},
        ("spec.spec.devices.requests[0].exactly.count",),
    ),
    (CLASSES, device_class(selectors=[selector("1")]), ("spec.selectors[0].cel.expression",)),
    (CLASSES, device_class(extendedResourceName="cpu"), ("spec.extendedResourceName",)),
    (SLICES, device_slice(nodeName=None), ("spec",)),
    (SLICES, device_slice(allNodes=True), ("spec",)),
    (SLICES, device_slice(driver=BAD), ("spec.driver",)),
    (
        SLICES,
        device_slice(pool={"name": BAD, "generation": -1}),
        ("spec.pool.generation", "spec.pool.name", "spec.pool.resourceSliceCount"),
    ),
    (SLICES, device_slice({"name": "d"}, {"name": "d"}), ("spec.devices[1]",)),
    (
        SLICES,
        device_slice({"name": "d", "attributes": {"a-b": {"bool": True}, "c": {}}}),
        (f"{DEVICE}.attributes", f"{DEVICE}.attributes[c]"),
    ),
    (
        SLICES,
        device_slice({"name": "d", "attributes": {"v": {"strings": ["a"]}}}),
        (f"{DEVICE}.attributes[v]",),
    ),
    (
        SLICES,
        device_slice({"name": "d", "attributes": {"v": {"version": "1"}}}),
        (f"{DEVICE}.attributes[v].version",),
    ),
    (
        SLICES,
        device_slice({"name": "d", "capacity": {"m": {"value": "1", "requestPolicy": {}}}}),
        (f"{DEVICE}.capacity[m].requestPolicy",),
    ),
    (
        SLICES,
        shared(validValues=["4", "2"], default="3"),
        (
            f"{DEVICE}.capacity[memory].requestPolicy.validValues",
            f"{DEVICE}.capacity[memory].requestPolicy.validValues[1]",
        ),
    ),
    (
        SLICES,
        shared(validRange={"min": "2", "max": "20"}, default="1"),
        (
            f"{DEVICE}.capacity[memory].requestPolicy.validRange.max",
            f"{DEVICE}.capacity[memory].requestPolicy.validRange.min",
        ),
    ),
    (
        SLICES,
        device_slice({"name": "d", "taints": [{"key": "a b", "effect": "Some"}]}),
        (f"{DEVICE}.taints[0].effect", f"{DEVICE}.taints[0].key"),
    ),
    (
        RULES,
        {"metadata": {"name": "r"}, "spec": {"deviceSelector": dict.fromkeys(SELECTED, BAD)}},
        (
            "spec.deviceSelector.device",
            "spec.deviceSelector.driver",
            "spec.deviceSelector.pool",
            "spec.taint.effect",
            "spec.taint.key",
        ),
    ),
    (RULES, taint_rule(effect="Some", value="a b"), ("spec.taint.effect", "spec.taint.value")),
    (SLICES, device_slice({"name": "d", "nodeName": "n"}), (DEVICE,)),
    (
        SLICES,
        device_slice({"name": "d"}, nodeName=None, perDeviceNodeSelection=True),
        (DEVICE,),
    ),
    (
        SLICES,
        device_slice({"name": "d", "bindingConditions": ["a"]}),
        (f"{DEVICE}.bindingFailureConditions",),
    ),
    (
        SLICES,
        device_slice({"name": "d", "consumesCounters": [{"counterSet": "s"}]}),
        (f"{DEVICE}.consumesCounters[0].counters",),
    ),
    (
        names.PODS,
        pod("p", resourceClaims=[{"name": "a"}, {"name": "a", "resourceClaimName": BAD}]),
        (
            "spec.resourceClaims[0]",
            "spec.resourceClaims[1].name",
            "spec.resourceClaims[1].resourceClaimName",
        ),
    ),
    (
        names.PODS,
        pod("p", resourceClaims=[{"name": "a", "resourceClaimName": "c",
                                  "resourceClaimTemplateName": "t"}]),
        ("spec.resourceClaims[0]",),
    ),
)  # fmt: skip


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path) as started:
        yield started


def path(resource: Resource, name: str = "", subresource: str = "") -> str:
    return resource.path("default" if resource.namespaced else "", name, subresource)


async def test_both_servers_reject_the_same_and_name_the_same_fields(server: Server) -> None:
    for resource, body, fields in REJECTED:
        response = await server.request("POST", path(resource), body)
        assert response.status == 422, (body, response.body)
        found = tuple(sorted({each["field"] for each in response.body["details"]["causes"]}))
        assert found == fields, response.body["message"]


async def test_containers_use_claims_of_their_pod_each_once(server: Server) -> None:
    def using(*claims: Json) -> Json:
        body = pod("p", resourceClaims=[{"name": "a", "resourceClaimName": "c"}])
        body["spec"]["containers"][0]["resources"] = {"claims": list(claims)}
        return body

    start = "spec.containers[0].resources.claims"
    for claims, fields in (
        ([{"name": "b"}], [f"{start}[0]"]),
        ([{"name": "a"}, {"name": "a", "request": "r"}], [f"{start}[1]"]),
        ([{"name": "a", "request": "r"}, {"name": "a"}], [f"{start}[1]"]),
        ([{"name": "a", "request": BAD}], [f"{start}[0].request"]),
    ):
        response = await server.request("POST", path(names.PODS), using(*claims))
        assert response.status == 422, response.body
        assert [each["field"] for each in response.body["details"]["causes"]] == fields
    body = using({"name": "a", "request": "r"}, {"name": "a", "request": "s"})
    assert (await server.request("POST", path(names.PODS), body)).status == 201


async def test_admin_access_needs_the_label_of_the_namespace(server: Server) -> None:
    template = {"metadata": {"name": "t"}, "spec": {"spec": exactly(adminAccess=True)["spec"]}}
    for resource, body in ((CLAIMS, exactly(adminAccess=True)), (TEMPLATES, template)):
        response = await server.request("POST", path(resource), body)
        assert (response.status, "admin access to devices" in response.body["message"]) == (
            422, True,
        )  # fmt: skip
    labels = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await server.request("PATCH", path(names.NAMESPACES, "default"), labels, content_type=MERGE)
    for resource, body in ((CLAIMS, exactly(adminAccess=True)), (TEMPLATES, template)):
        assert (await server.request("POST", path(resource), body)).status == 201


def allocation(device: str = "d", **fields: Any) -> Json:
    result = {"request": "r", "driver": "gpu.example.com", "pool": "p", "device": device}
    return {"devices": {"results": [{**result, **fields}]}}


CONSUMER = {"resource": "pods", "name": "p", "uid": "u"}


async def test_a_claim_is_immutable_and_its_allocation_is_replaced_by_none_alone(
    server: Server,
) -> None:
    await server.create(path(CLAIMS), claim())
    change = claim("c", {"name": "other", "exactly": CLASS})
    rejected = await server.request("PATCH", path(CLAIMS, "c"), change, content_type=MERGE)
    assert (rejected.status, "field is immutable" in rejected.body["message"]) == (422, True)
    status = path(CLAIMS, "c", "status")
    for body, field in (
        ({"reservedFor": [CONSUMER]}, "status.reservedFor"),
        ({"allocation": allocation(request="s")}, "status.allocation.devices.results[0].request"),
        ({"allocation": allocation(device=BAD)}, "status.allocation.devices.results[0].device"),
        (
            {"allocation": allocation(), "reservedFor": [{"resource": "pods", "name": "p"}]},
            "status.reservedFor[0].uid",
        ),
        (
            {
                "allocation": allocation(),
                "devices": [{"driver": "gpu.example.com", "pool": "p", "device": "e"}],
            },
            "status.devices[0]",
        ),
    ):
        rejected = await server.request("PATCH", status, {"status": body}, content_type=MERGE)
        causes = [each["field"] for each in rejected.body["details"]["causes"]]
        assert (rejected.status, causes) == (422, [field]), rejected.body
    given = {"allocation": allocation(), "reservedFor": [CONSUMER]}
    given["devices"] = [{"driver": "gpu.example.com", "pool": "p", "device": "d"}]
    written = await server.request("PATCH", status, {"status": given}, content_type=MERGE)
    assert written.body["status"]["reservedFor"] == [CONSUMER]
    other = {"status": {"allocation": allocation("e"), "devices": None}}
    rejected = await server.request("PATCH", status, other, content_type=MERGE)
    assert (rejected.status, "immutable" in rejected.body["message"]) == (422, True)
    none = {"status": {"allocation": None, "reservedFor": None}}
    freed = await server.request("PATCH", status, none, content_type=MERGE)
    assert not freed.body.get("status"), "the state of devices is removed with their allocation"


async def test_the_names_of_created_claims_are_those_of_the_pod(server: Server) -> None:
    body = pod("p", resourceClaims=[{"name": "a", "resourceClaimTemplateName": "t"}])
    await server.create(path(names.PODS), body)
    status = path(names.PODS, "p", "status")
    for statuses, fields in (
        ([{"name": "b"}], ["status.resourceClaimStatuses[0].name"]),
        (
            [{"name": "a", "resourceClaimName": BAD}],
            ["status.resourceClaimStatuses[0].resourceClaimName"],
        ),
    ):
        change = {"status": {"resourceClaimStatuses": statuses}}
        rejected = await server.request("PATCH", status, change, content_type=MERGE)
        assert rejected.status == 422, rejected.body
        assert [each["field"] for each in rejected.body["details"]["causes"]] == fields


async def test_the_node_of_a_slice_does_not_change(server: Server) -> None:
    await server.create(path(SLICES), device_slice({"name": "d", "taints": [TAINT]}))
    found = await server.get(path(SLICES, "s"))
    assert found["spec"]["devices"][0]["taints"][0]["timeAdded"]
    for key, value in (("nodeName", "m"), ("driver", "other.example.com")):
        change = {"spec": {key: value}}
        rejected = await server.request("PATCH", path(SLICES, "s"), change, content_type=MERGE)
        causes = [each["field"] for each in rejected.body["details"]["causes"]]
        assert (rejected.status, causes) == (422, [f"spec.{key}"])


async def test_the_taint_of_a_rule_begins_when_its_effect_changes(server: Server) -> None:
    old = "2026-01-01T00:00:00Z"
    given = taint_rule(effect="None", timeAdded=old)
    given["status"] = {"conditions": [CONDITION]}
    created = await server.create(path(RULES), given)
    assert created["spec"]["taint"]["timeAdded"] == old
    assert created["metadata"]["generation"] == 1
    assert not created.get("status")

    async def write(**taint: Any) -> Json:
        change = {"spec": {"taint": taint}}
        response = await server.request("PATCH", path(RULES, "r"), change, content_type=MERGE)
        assert response.status == 200, response.body
        written: Json = response.body
        return written

    same_effect = await write(value="v")
    assert same_effect["spec"]["taint"]["timeAdded"] == old
    assert same_effect["metadata"]["generation"] == 2
    other_time = "2026-01-02T00:00:00Z"
    both = await write(effect="NoSchedule", timeAdded=other_time)
    assert both["spec"]["taint"]["timeAdded"] == other_time
    other_effect = await write(effect="NoExecute")
    assert other_effect["spec"]["taint"]["timeAdded"] > other_time


CONDITION = {
    "type": "EvictionInProgress",
    "status": "True",
    "reason": "Tested",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


async def test_the_status_of_a_rule_has_at_most_eight_valid_conditions(server: Server) -> None:
    await server.create(path(RULES), taint_rule(effect="None"))
    status = path(RULES, "r", "status")
    for conditions, fields in (
        ([{**CONDITION, "reason": ""}], ["status.conditions[0].reason"]),
        ([{**CONDITION, "type": f"t{index}"} for index in range(9)], ["status.conditions"]),
    ):
        change = {"status": {"conditions": conditions}}
        rejected = await server.request("PATCH", status, change, content_type=MERGE)
        assert rejected.status == 422, rejected.body
        assert [each["field"] for each in rejected.body["details"]["causes"]] == fields
    everything: Json = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"taint": {"key": "other"}},
        "status": {"conditions": [CONDITION]},
    }
    written = await server.request("PATCH", status, everything, content_type=MERGE)
    assert written.body["status"]["conditions"] == [CONDITION]
    assert written.body["spec"]["taint"]["key"] == "broken"
    assert "labels" not in written.body["metadata"]


async def test_fields_of_alpha_features_of_devices_are_not_stored(server: Server) -> None:
    mappings = {"cpu": {"allocationMultiplier": "1"}}
    attributes = {"a": {"string": "s", "strings": ["t"], "ints": [1]}}
    device = {"name": "d", "attributes": attributes, "nodeAllocatableResourceMappings": mappings}
    stored = await server.create(path(SLICES), device_slice(device))
    assert stored["spec"]["devices"] == [{"name": "d", "attributes": {"a": {"string": "s"}}}]
