"""Queues and PodGroups over REST, on both API servers with Volcano's admission."""

import asyncio
import itertools
import uuid
from typing import Any

import pytest
import pytest_asyncio
from support.job_pods import RestSession, in_own_namespace
from support.polling import wait_until_true

from batholith.api.problems import ProblemError
from batholith.api.writes import queues as queue_writes
from batholith.model.names import PODGROUPS, QUEUES, WHY

Json = dict[str, Any]

pytestmark = pytest.mark.asyncio(loop_scope="module")

_numbers = itertools.count()


@pytest_asyncio.fixture(loop_scope="module")
async def rest(shared: RestSession) -> RestSession:
    return await in_own_namespace(shared)


def new_name() -> str:
    return f"q{next(_numbers)}"


async def create(rest: RestSession, **fields: Any) -> Json:
    status, body = await rest.call("POST", "/v1/queues", {"name": new_name(), **fields})
    assert status == 201, body
    created: Json = body
    return created


async def wait_listed(rest: RestSession, queue: Json) -> None:
    """Wait until the REST API's informer has this version of a queue."""

    async def is_listed() -> bool:
        _, body = await rest.get("/v1/queues?limit=500")
        versions = [each["resource_version"] for each in body["items"]]
        return bool(queue["resource_version"] in versions)

    await wait_until_true(is_listed)


async def test_a_queue_is_created_in_short(rest: RestSession) -> None:
    name = new_name()
    body = {
        "name": name,
        "weight": 3,
        "priority": 7,
        "reclaimable": False,
        "capability": {"cpu": 64, "memory": "1Ti"},
        "deserved": {"cpu": "32.5"},
        "guarantee": {"cpu": "500m"},
        "dequeue_strategy": "fifo",
        "labels": {"team": "a"},
    }
    async with rest.request("POST", "/v1/queues", json=body) as response:
        created = await response.json()
        assert response.status == 201, created
        assert response.headers["Location"] == f"/v1/queues/{name}"
        assert response.headers["ETag"] == f'"{created["resource_version"]}"'
    expected = {
        "name": name,
        "state": "Open",
        "parent": "root",
        "weight": 3,
        "priority": 7,
        "reclaimable": False,
        "dequeue_strategy": "fifo",
        "capability": {"cpu": "64", "memory": "1Ti"},
        "deserved": {"cpu": "32.5"},
        "guarantee": {"cpu": "500m"},
        "allocated": {},
        "labels": {"team": "a"},
        "deleting": False,
    }
    assert {field: created[field] for field in expected} == expected
    assert await rest.get(f"/v1/queues/{name}") == (200, created)
    assert (await rest.call("POST", "/v1/queues", body))[0] == 409


async def test_a_queue_is_created_from_a_manifest(rest: RestSession) -> None:
    manifest = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": new_name(), "annotations": {"note": "x"}},
        "spec": {"weight": 2, "affinity": {"nodeGroupAffinity": {}}},
    }
    path = "/v1/queues"
    status, body = await rest.call("POST", f"{path}?dry_run=true", manifest)
    assert (status, body["weight"]) == (200, 2)
    assert (await rest.get(f"{path}/{body['name']}"))[0] == 404
    assert (await rest.call("POST", path, manifest))[0] == 201
    kept = await rest.cluster.client.get(QUEUES, body["name"], view=dict)
    assert kept["metadata"]["annotations"]["note"] == "x"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], ""),
        ({}, "name"),
        ({"name": "A"}, "name"),
        ({"name": "a", "weight": 0}, "weight"),
        ({"name": "a", "weight": 65536}, "weight"),
        ({"name": "a", "weight": "1"}, "weight"),
        ({"name": "a", "size": 1}, "size"),
        ({"name": "a", "capability": {"cpu": "much"}}, "capability.cpu"),
        ({"name": "a", "guarantee": {"cpu": "NaN"}}, "guarantee.cpu"),
        ({"kind": "Queue"}, "apiVersion"),
        (
            {
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "Queue",
                "metadata": {"name": "a", "uid": "x"},
            },
            "metadata.uid",
        ),
        (
            {
                "apiVersion": "scheduling.volcano.sh/v1beta1",
                "kind": "Queue",
                "metadata": {"name": "a"},
                "spec": {"wieght": 1},
            },
            "wieght",
        ),
    ],
)
async def test_an_invalid_queue_is_rejected(rest: RestSession, body: object, field: str) -> None:
    status, problem = await rest.call("POST", "/v1/queues", body)
    assert status == 422, problem
    assert field in problem["detail"]
    assert (await rest.get("/v1/queues/a"))[0] == 404


async def test_a_patch_changes_what_it_names(rest: RestSession) -> None:
    queue = await create(rest, weight=2, priority=1, capability={"cpu": "8", "memory": "8Gi"})
    path = f"/v1/queues/{queue['name']}"
    status, body = await rest.call("PATCH", path, {"weight": 5, "capability": {"cpu": "9"}})
    assert status == 200, body
    assert (body["weight"], body["priority"], body["capability"]) == (5, 1, {"cpu": "9"})
    status, body = await rest.call("PATCH", path, {"capability": None, "weight": None})
    assert (status, body["weight"], body["capability"]) == (200, 1, {})
    status, body = await rest.call("PATCH", path, {"guarantee": {"cpu": "1"}})
    assert status == 422
    assert "deserved[cpu] must be >= guarantee[cpu]=1" in body["detail"]
    for bad in ({}, {"name": "other"}, {"weight": 0}, {"state": "Open"}):
        assert (await rest.call("PATCH", path, bad))[0] == 422
    assert (await rest.call("PATCH", "/v1/queues/none", {"weight": 2}))[0] == 404


async def test_writes_apply_to_the_version_in_if_match(rest: RestSession) -> None:
    queue = await create(rest)
    path, old = f"/v1/queues/{queue['name']}", f'"{queue["resource_version"]}"'
    assert (await rest.call("GET", path, If_None_Match=old))[0] == 304
    status, changed = await rest.call("PATCH", path, {"weight": 2}, If_Match=old)
    assert status == 200, changed
    assert (await rest.call("GET", path, If_None_Match=old))[0] == 200
    assert (await rest.call("PATCH", path, {"weight": 3}, If_Match=old))[0] == 412
    assert (await rest.call("DELETE", path, If_Match=old))[0] == 412
    new = f'"{changed["resource_version"]}"'
    status, deleted = await rest.call("DELETE", path, If_Match=new)
    assert (status, deleted["deleting"]) == (202, False)
    assert (await rest.call("DELETE", path, If_Match="*"))[0] == 404


async def test_the_denial_of_a_deletion_is_passed_on(rest: RestSession) -> None:
    parent = await create(rest)
    child = await create(rest, parent=parent["name"])

    async def is_denied() -> bool:
        """Whether the webhook, which reads from an informer, knows the child."""
        path = f"{QUEUES.path(name=parent['name'])}?dryRun=All"
        return (await rest.cluster.server.request("DELETE", path)).status != 200

    await wait_until_true(is_denied)
    status, body = await rest.call("DELETE", f"/v1/queues/{parent['name']}")
    assert status == 422
    assert child["name"] in body["detail"]
    for name in ("default", "root"):
        status, body = await rest.call("DELETE", f"/v1/queues/{name}")
        assert status == 422
        assert f"`{name}` queue can not be deleted" in body["detail"]


async def test_a_queue_with_a_finalizer_is_being_deleted(rest: RestSession) -> None:
    queue = await create(rest)
    held = {"metadata": {"finalizers": ["example.com/held"]}}
    await rest.cluster.client.patch(QUEUES, queue["name"], held)
    status, body = await rest.call("DELETE", f"/v1/queues/{queue['name']}")
    assert (status, body["deleting"]) == (202, True)
    await rest.cluster.client.patch(QUEUES, queue["name"], {"metadata": {"finalizers": None}})


async def test_a_repeated_creation_returns_its_queue(rest: RestSession) -> None:
    operation, name = uuid.uuid4(), new_name()
    body = queue_writes.build_queue({"name": name}, operation=operation)
    client = rest.cluster.client
    first, _ = await queue_writes.create(client, body, operation=operation, dry_run=False)
    again, _ = await queue_writes.create(client, body, operation=operation, dry_run=False)
    assert first.metadata.uid == again.metadata.uid
    with pytest.raises(ProblemError, match="exists"):
        await queue_writes.create(client, body, operation=uuid.uuid4(), dry_run=False)


async def test_concurrent_patches_are_all_applied(rest: RestSession) -> None:
    queue = await create(rest)
    path = f"/v1/queues/{queue['name']}"
    changes: list[Json] = [{"weight": 9}, {"priority": 8}, {"reclaimable": False}]
    results = await asyncio.gather(*(rest.call("PATCH", path, each) for each in changes))
    assert [status for status, _ in results] == [200, 200, 200], results
    _, body = await rest.get(path)
    assert (body["weight"], body["priority"], body["reclaimable"]) == (9, 8, False)


async def test_queues_are_listed_in_pages(rest: RestSession) -> None:
    parent = await create(rest)
    created = [await create(rest, parent=parent["name"], weight=weight) for weight in (5, 10, 1)]
    await wait_listed(rest, created[-1])
    base = f"/v1/queues?parent={parent['name']}"
    _, body = await rest.get(f"{base}&sort=weight")
    assert [each["weight"] for each in body["items"]] == [1, 5, 10]
    assert (body["total"], body["next_cursor"]) == (3, None)
    found, cursor = [], ""
    while True:
        _, body = await rest.get(f"{base}&sort=-created&limit=1{cursor}")
        assert body["total"] == 3
        found += [each["name"] for each in body["items"]]
        if body["next_cursor"] is None:
            break
        cursor = f"&cursor={body['next_cursor']}"
    assert sorted(found) == sorted(each["name"] for each in created)
    other = f"{base}&sort=name{cursor}"
    assert (await rest.get(other))[0] == 422
    assert (await rest.get(f"{base}&cursor=x"))[0] == 422
    _, body = await rest.get(f"{base}&state=Closed&state=Closing")
    assert body["items"] == []


async def test_usage_of_a_queue(rest: RestSession) -> None:
    queue = await create(rest, capability={"cpu": "8", "example.com/gpu": 4}, deserved={"cpu": "4"})
    name = queue["name"]
    status = {"status": {"state": "Open", "allocated": {"cpu": "2", "memory": "1Gi"}}}
    await rest.cluster.client.patch(QUEUES, name, status, subresource="status")
    for number, phase in enumerate(("Running", "Running", "Inqueue")):
        body = {
            "metadata": {"name": f"g{number}"},
            "spec": {"queue": name, "minMember": 1},
            "status": {"phase": phase},
        }
        await rest.cluster.create(body, PODGROUPS)

    async def is_counted() -> bool:
        _, usage = await rest.get(f"/v1/queues/{name}/usage")
        return bool(usage["podgroups"] == {"Inqueue": 1, "Running": 2})

    await wait_until_true(is_counted)
    assert (await rest.get(f"/v1/queues/{name}/usage"))[1] == {
        "name": name,
        "state": "Open",
        "resources": {
            "cpu": {"allocated": "2", "deserved": "4", "capability": "8", "guarantee": None},
            "memory": {
                "allocated": "1Gi",
                "deserved": None,
                "capability": None,
                "guarantee": None,
            },
            "example.com/gpu": {
                "allocated": "0",
                "deserved": None,
                "capability": "4",
                "guarantee": None,
            },
        },
        "jobs": {},
        "podgroups": {"Inqueue": 1, "Running": 2},
        "children": [],
        "past": None,
        "budget": None,
    }
    parent = await create(rest)
    child = await create(rest, parent=parent["name"])
    await wait_listed(rest, child)
    _, usage = await rest.get(f"/v1/queues/{parent['name']}/usage")
    assert usage["children"] == [child["name"]]
    assert (await rest.get("/v1/queues/none/usage"))[0] == 404


async def test_podgroups_are_listed_and_explained(rest: RestSession) -> None:
    limit = '{"requested":"2","limit":"1","used":"0","overcommitFactor":1.2}'
    why = f'{{"stage":"quota","reason":"r","message":"m","limits":{{"cpu":{limit}}}}}'
    for name, phase, annotations in (
        ("b", "Pending", {WHY: why}),
        ("a", "Running", {WHY: "{"}),
        ("c", "", {}),
    ):
        body = {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"minMember": 2, "queue": "default", "minResources": {"cpu": 2}},
            "status": {"phase": phase} if phase else {},
        }
        await rest.cluster.create(body, PODGROUPS)

    async def are_listed() -> bool:
        return bool((await rest.get(f"{rest.root}/podgroups"))[1]["total"] == 3)

    await wait_until_true(are_listed)
    _, body = await rest.get(f"{rest.root}/podgroups")
    assert [each["name"] for each in body["items"]] == ["a", "b", "c"]
    _, body = await rest.get(f"{rest.root}/podgroups?phase=Pending&sort=-name")
    assert [each["name"] for each in body["items"]] == ["c", "b"]
    status, found = await rest.get(f"{rest.root}/podgroups/b")
    assert (status, found["explanation"]["limits"]["cpu"]["overcommit_factor"]) == (200, 1.2)
    assert (found["min_member"], found["min_resources"]) == (2, {"cpu": "2"})
    assert (await rest.get(f"{rest.root}/podgroups/a"))[1]["explanation"] is None
    assert (await rest.get(f"{rest.root}/podgroups/none"))[0] == 404
    _, body = await rest.get("/v1/podgroups?queue=default&limit=500")
    assert {each["name"] for each in body["items"] if each["namespace"] == rest.cluster.namespace}
