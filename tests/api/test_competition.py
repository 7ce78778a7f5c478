"""What a job competes with, and what is reserved, by what the caller may see."""

import json
from typing import Any

from support.polling import wait_until_true
from support.rest import CLUSTER_ROLE_BINDINGS, PATH, RestClient
from support.simulations import leading

from batholith.model.job import Job
from batholith.model.names import BATCH_JOBS, JOBS, PODGROUPS, SERVICEACCOUNTS, WHY, Resource
from batholith.model.scheduler_questions import (
    FreeAmount,
    GangAhead,
    Holder,
    JobRef,
    NodeReservation,
    Reservations,
    ReservedNode,
    WaitDetails,
    WaitRequest,
)

_RBAC = "rbac.authorization.k8s.io"
CLUSTER_ROLES = Resource(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False)
ROLE_BINDINGS = Resource(_RBAC, "v1", "rolebindings", "RoleBinding")
EXPLANATION = {"stage": "nodes", "message": "1 of 1 pods cannot be scheduled", "queue": {}}


def ref(namespace: str, name: str, resource: Resource = JOBS) -> JobRef:
    return JobRef(namespace, resource.api_version, resource.kind, name)


DETAILS = WaitDetails(
    position=3,
    waiting=4,
    ahead=(
        GangAhead(ref("default", "visible"), {"cpu": "4"}),
        GangAhead(ref("secret-ns", "hidden"), {"cpu": "8"}),
    ),
    free=(FreeAmount("cpu", "4", "1", "8", group="a100", nodes=2, usable=1, largest="1"),),
    holders=(
        Holder(ref("default", "train", BATCH_JOBS), "default", {"cpu": "3"}, 1, 60.0, "limit"),
        Holder(ref("secret-ns", "hidden-too"), "secret-queue", {"cpu": "3"}, 2),
    ),
    more_holders=5,
)
RESERVED = Reservations(
    (
        NodeReservation(
            ref("secret-ns", "hidden"),
            "secret-queue",
            "start",
            (ReservedNode("n1", {"cpu": "2"}),),
            start=60.0,
        ),
    )
)


async def bob(rest: RestClient) -> str:
    """The token of a user who may see jobs in the namespace default alone."""
    await rest.client.create(SERVICEACCOUNTS, {"metadata": {"name": "bob"}}, namespace="default")
    rules = [
        {"apiGroups": [JOBS.group], "resources": ["jobs"], "verbs": ["get", "list"]},
        {"apiGroups": [PODGROUPS.group], "resources": ["podgroups"], "verbs": ["get"]},
    ]
    await rest.client.create(CLUSTER_ROLES, {"metadata": {"name": "reader"}, "rules": rules})
    binding = {
        "metadata": {"name": "bob"},
        "subjects": [{"kind": "ServiceAccount", "name": "bob", "namespace": "default"}],
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": "reader"},
    }
    await rest.client.create(ROLE_BINDINGS, binding, namespace="default")
    path = SERVICEACCOUNTS.path("default", "bob", "token")
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token: str = (await rest.server.create(path, request))["status"]["token"]
    return token


async def let_list_nodes(rest: RestClient) -> None:
    """Give the user that right; the REST API knows it a moment later."""
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
    await rest.client.create(CLUSTER_ROLES, {"metadata": {"name": "nodes"}, "rules": rules})
    binding = {
        "metadata": {"name": "bob-nodes"},
        "subjects": [{"kind": "ServiceAccount", "name": "bob", "namespace": "default"}],
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": "nodes"},
    }
    await rest.client.create(CLUSTER_ROLE_BINDINGS, binding)


async def let_wait(rest: RestClient) -> str:
    """Let the job wait for the scheduler; return the name of its PodGroup."""
    job = await rest.client.get(JOBS, "train", namespace="default", view=Job)
    owner = {"apiVersion": JOBS.api_version, "kind": "Job", "name": "train", "controller": True}
    name = f"train-{job.metadata.uid}"
    group = {
        "metadata": {
            "name": name,
            "annotations": {WHY: json.dumps(EXPLANATION)},
            "ownerReferences": [{**owner, "uid": job.metadata.uid}],
        },
        "spec": {"minMember": 1},
    }
    await rest.client.create(PODGROUPS, group, namespace="default")

    async def is_explained() -> bool:
        return (await rest.call("GET", f"{PATH}/why"))[1]["explanation"] is not None

    await wait_until_true(is_explained)
    return name


async def why(rest: RestClient, token: str | None = None) -> Any:
    """Why the job waits, as soon as the scheduler has responded in time."""
    found: list[Any] = []

    async def has_competition() -> bool:
        status, body = await rest.call("GET", f"{PATH}/why", token=token)
        assert status == 200, body
        found.append(body)
        return body["competition"] is not None

    await wait_until_true(has_competition)
    return found[-1]


async def reservations(rest: RestClient, token: str | None = None) -> Any:
    """What is reserved, as soon as the user may read it and the scheduler has responded in time."""
    found: list[Any] = []

    async def is_read() -> bool:
        status, body = await rest.call("GET", "/v1/reservations", token=token)
        found.append(body)
        return status == 200

    await wait_until_true(is_read)
    return found[-1]


async def test_jobs_that_the_caller_may_not_see_have_no_name(rest: RestClient) -> None:
    group, token = await let_wait(rest), await bob(rest)
    asked: list[WaitRequest] = []

    async def explain_wait(request: WaitRequest) -> WaitDetails | None:
        asked.append(request)
        return DETAILS

    async with leading(rest.client, explain_wait=explain_wait, reservations=RESERVED):
        body = await why(rest, token)
        found = body["competition"]
        assert (found["position"], found["waiting"], found["more_holders"]) == (3, 4, 5)
        visible = {"namespace": "default", "kind": "jobs", "name": "visible"}
        assert found["ahead"] == [
            {"job": visible, "requests": {"cpu": "4"}},
            {"job": None, "requests": {"cpu": "8"}},
        ]
        # Jobs of batch/v1 are not among those that the user may list.
        assert [(each["job"], each["queue"]) for each in found["holders"]] == [(None, "")] * 2
        assert found["holders"][0]["until"] == "1970-01-01T00:01:00Z"
        assert found["free"][0]["usable"] == 1
        assert "hidden" not in json.dumps(body)
        assert "secret" not in json.dumps(body)
        body = await why(rest)
        names = [each["job"]["name"] for each in body["competition"]["holders"]]
        kinds = [each["job"]["kind"] for each in body["competition"]["holders"]]
        assert (names, kinds) == (["train", "hidden-too"], ["batchjobs", "jobs"])
        assert set(asked) == {WaitRequest("default", group)}

        assert (await rest.call("GET", "/v1/reservations", token=token))[0] == 403
        await let_list_nodes(rest)
        body = await reservations(rest, token)
        assert (body["items"][0]["job"], body["items"][0]["queue"]) == (None, "")
        assert "hidden" not in json.dumps(body)
        body = await reservations(rest)
        (item,) = body["items"]
        assert (item["job"]["name"], item["start"]) == ("hidden", "1970-01-01T00:01:00Z")
        assert item["nodes"] == [{"node": "n1", "amounts": {"cpu": "2"}}]
        assert body["is_complete"] is True


async def test_without_a_scheduler_the_reason_is_still_there(rest: RestClient) -> None:
    await let_wait(rest)
    status, body = await rest.call("GET", f"{PATH}/why")
    assert (status, body["competition"], body["reason"]) == (200, None, "Unschedulable")
    assert "no scheduler" in body["competition_error"]
    status, body = await rest.call("GET", "/v1/reservations")
    assert status == 503
    assert "no scheduler" in body["detail"]
