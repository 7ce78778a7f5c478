"""Kubernetes' own PodGroups and Workloads, on both servers."""

from collections.abc import Awaitable, Callable
from typing import Any

from support.api_servers import add_priority_class
from support.embedded_apiserver import MERGE, RawResponse, Server, pod
from support.polling import wait_until_true

from batholith.model.names import (
    NATIVE_PODGROUPS,
    PODS,
    WORKLOADS,
    Resource,
)

Json = dict[str, Any]
GANG = {"gang": {"minCount": 2}}
STRATEGIC = "application/strategic-merge-patch+json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
BAD = "Not_A_Name"

PROTECTION = "scheduling.k8s.io/podgroup-protection"


def podgroup(name: str = "g", **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": {"schedulingPolicy": GANG, **spec}}


def workload(*templates: Json, **spec: Any) -> Json:
    found = [{"name": "t", "schedulingPolicy": GANG, **each} for each in templates]
    return {"metadata": {"name": "w"}, "spec": {"podGroupTemplates": found, **spec}}


def claim(**fields: Any) -> Json:
    return {"name": "gpu", "resourceClaimName": "c", **fields}


REJECTED_GROUPS: tuple[tuple[Json, tuple[str, ...]], ...] = (
    ({"schedulingPolicy": {}}, ("spec.schedulingPolicy",)),
    ({"schedulingPolicy": {**GANG, "basic": {}}}, ("spec.schedulingPolicy",)),
    ({"schedulingPolicy": {"gang": {}}}, ("spec.schedulingPolicy.gang.minCount",)),
    ({"schedulingPolicy": {"gang": {"minCount": -1}}}, ("spec.schedulingPolicy.gang.minCount",)),
    (
        {"schedulingConstraints": {"topology": [{"key": "a"}, {"key": "b"}]}},
        ("spec.schedulingConstraints.topology",),
    ),
    (
        {"schedulingConstraints": {"topology": [{"key": "a b"}]}},
        ("spec.schedulingConstraints.topology[0].key",),
    ),
    (
        {"schedulingConstraints": {"topology": [{}]}},
        ("spec.schedulingConstraints.topology[0].key",),
    ),
    ({"resourceClaims": [claim(), claim()]}, ("spec.resourceClaims[1]",)),
    (
        {"resourceClaims": [{"name": BAD}]},
        ("spec.resourceClaims[0]", "spec.resourceClaims[0].name"),
    ),
    (
        {"resourceClaims": [claim(resourceClaimTemplateName="t")]},
        ("spec.resourceClaims[0]",),
    ),
    (
        {"resourceClaims": [claim(resourceClaimName=BAD)]},
        ("spec.resourceClaims[0].resourceClaimName",),
    ),
    ({"resourceClaims": [claim(name=f"c{i}") for i in range(5)]}, ("spec.resourceClaims",)),
    ({"disruptionMode": "Other"}, ("spec.disruptionMode",)),
    ({"podGroupTemplateRef": {}}, ("spec.podGroupTemplateRef",)),
)

REJECTED_WORKLOADS: tuple[tuple[Json, tuple[str, ...]], ...] = (
    (workload(), ("spec.podGroupTemplates",)),
    (workload({}, {}), ("spec.podGroupTemplates[1]",)),
    (workload({"name": BAD}), ("spec.podGroupTemplates[0].name",)),
    (
        workload(*({"name": f"t{i}"} for i in range(9))),
        ("spec.podGroupTemplates",),
    ),
    (
        workload({"priority": 2_000_000_000, "priorityClassName": BAD}),
        ("spec.podGroupTemplates[0].priority", "spec.podGroupTemplates[0].priorityClassName"),
    ),
    (
        workload({}, controllerRef={"apiGroup": BAD, "kind": "a/b", "name": ""}),
        ("spec.controllerRef.apiGroup", "spec.controllerRef.kind", "spec.controllerRef.name"),
    ),
)


async def create(server: Server, resource: Resource, body: Json) -> RawResponse:
    return await server.request("POST", resource.path("default"), body)


async def test_both_servers_reject_the_same_and_name_the_same_fields(server: Server) -> None:
    """INV-NG-21."""
    cases = [(NATIVE_PODGROUPS, podgroup(**spec), fields) for spec, fields in REJECTED_GROUPS]
    cases += [(WORKLOADS, body, fields) for body, fields in REJECTED_WORKLOADS]
    for resource, body, fields in cases:
        response = await create(server, resource, body)
        assert response.status == 422, (body, response.body)
        found = tuple(sorted(each["field"] for each in response.body["details"]["causes"]))
        assert found == fields, response.body["message"]
    too_many = await create(server, *_with_two_keys())
    assert too_many.body["message"].endswith("Too many: 2: must have at most 1 item")


def _with_two_keys() -> tuple[Resource, Json]:
    keys = {"topology": [{"key": "a"}, {"key": "b"}]}
    return NATIVE_PODGROUPS, podgroup(schedulingConstraints=keys)


async def test_a_new_podgroup_is_protected_has_defaults_and_no_status(server: Server) -> None:
    """INV-NG-21."""
    await add_priority_class(server, "high", 100)
    body = podgroup(priorityClassName="high") | {
        "status": {"conditions": [{"type": "PodGroupScheduled", "status": "True"}]}
    }
    created = (await create(server, NATIVE_PODGROUPS, body)).body
    assert created["metadata"]["finalizers"] == [PROTECTION]
    assert created["spec"]["disruptionMode"] == "Pod"
    assert created["spec"]["priority"] == 100
    assert not created.get("status")
    for spec, text in (
        ({"priorityClassName": "none"}, "no PriorityClass with name none was found"),
        ({"priority": 5}, "priority set in the pod group (5) must match the priority computed (0)"),
    ):
        rejected = await create(server, NATIVE_PODGROUPS, podgroup("other", **spec))
        assert (rejected.status, text in rejected.body["message"]) == (403, True), rejected.body


async def test_a_podgroup_may_refer_to_a_template_that_exists(server: Server) -> None:
    """INV-NG-21."""

    def referring(template: str, name: str = "w") -> Json:
        reference = {"workloadName": name, "podGroupTemplateName": template}
        return podgroup(podGroupTemplateRef={"workload": reference})

    await server.create(WORKLOADS.path("default"), workload({}))

    async def is_known() -> bool:
        """Whether admission, which reads from an informer, has the Workload."""
        path = f"{NATIVE_PODGROUPS.path('default')}?dryRun=All"
        return (await server.request("POST", path, referring("t"))).status == 201

    await wait_until_true(is_known)
    for body, text in (
        (referring("t", "none"), 'PodGroup rejected: Workload "none" not found'),
        (
            referring("none"),
            'PodGroup rejected: PodGroupTemplate "none" not found in Workload "w"',
        ),
    ):
        rejected = await create(server, NATIVE_PODGROUPS, body)
        assert rejected.status == 403
        assert rejected.body["message"].endswith(text)
    assert (await create(server, NATIVE_PODGROUPS, referring("t"))).status == 201
    table = await server.request("GET", NATIVE_PODGROUPS.path("default"), headers={"Accept": TABLE})
    assert [each["name"] for each in table.body["columnDefinitions"]] == [
        "Name", "Policy", "Workload", "Status", "Age",
    ]  # fmt: skip
    assert table.body["rows"][0]["cells"][:4] == ["g", "Gang", "w", "Pending"]


async def test_specs_are_immutable_and_the_status_is_written_apart(server: Server) -> None:
    """INV-NG-21."""
    await server.create(NATIVE_PODGROUPS.path("default"), podgroup())
    await server.create(WORKLOADS.path("default"), workload({}))
    path = NATIVE_PODGROUPS.path("default", "g")
    for changed, body in (
        (path, {"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}}),
        (WORKLOADS.path("default", "w"), {"spec": {"controllerRef": {"kind": "A", "name": "b"}}}),
    ):
        rejected = await server.request("PATCH", changed, body, content_type=MERGE)
        assert (rejected.status, "field is immutable" in rejected.body["message"]) == (422, True)
    condition = {
        "type": "PodGroupScheduled", "status": "True", "reason": "Scheduled", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    status = {"status": {"conditions": [condition]}}
    ignored = await server.request("PATCH", path, status, content_type=MERGE)
    assert not ignored.body.get("status")
    for broken, field in (
        ({"reason": ""}, "reason"),
        ({"reason": "not one"}, "reason"),
        ({"status": "Maybe"}, "status"),
        ({"type": "a b"}, "type"),
        ({"lastTransitionTime": None}, "lastTransitionTime"),
    ):
        bad = {"status": {"conditions": [condition | broken]}}
        rejected = await server.request("PATCH", f"{path}/status", bad, content_type=MERGE)
        causes = [each["field"] for each in rejected.body["details"]["causes"]]
        assert causes == [f"status.conditions[0].{field}"], rejected.body
    written = await server.request("PATCH", f"{path}/status", status, content_type=STRATEGIC)
    assert written.body["status"]["conditions"][0] == condition


async def test_a_deleted_podgroup_exists_while_a_pod_that_has_not_ended_names_it(
    server: Server,
) -> None:
    """INV-NG-21."""
    await server.create(NATIVE_PODGROUPS.path("default"), podgroup())
    body = pod("p", schedulingGroup={"podGroupName": "g"})
    created = await server.create(PODS.path("default"), body)
    assert created["spec"]["schedulingGroup"] == {"podGroupName": "g"}
    for group in ({}, {"podGroupName": BAD}):
        rejected = await create(server, PODS, pod("q", schedulingGroup=group))
        causes = rejected.body["details"]["causes"]
        assert [each["field"] for each in causes] == ["spec.schedulingGroup.podGroupName"]
    path = NATIVE_PODGROUPS.path("default", "g")
    await server.request("DELETE", path)
    other = podgroup("other")
    await server.create(NATIVE_PODGROUPS.path("default"), other)
    await server.request("DELETE", NATIVE_PODGROUPS.path("default", "other"))

    def is_deleted(name: str) -> Callable[[], Awaitable[bool]]:
        async def check() -> bool:
            found = await server.request("GET", NATIVE_PODGROUPS.path("default", name))
            return found.status == 404

        return check

    await wait_until_true(is_deleted("other"))
    assert not await is_deleted("g")()
    ended = {"status": {"phase": "Succeeded"}}
    await server.request("PATCH", PODS.path("default", "p", "status"), ended, content_type=MERGE)
    await wait_until_true(is_deleted("g"))
