"""Commands on scope of jobs, on queues, on jobs of other kinds and on many jobs; waiting."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from support.polling import wait_until_true
from support.rest import JOB, PATH, RestClient, cluster, rest_api, rest_at, sqlite, starting_api

from batholith.kube.client.client import Client
from batholith.kube.errors import ConnectionLostError
from batholith.model.command import Command
from batholith.model.controlled_resources import OPERATIONS, OperationResult
from batholith.model.names import (
    BATCH_JOBS,
    JOBS,
    OPERATION,
    PARTITION,
    POD,
    QUEUES,
    TASK,
    Resource,
)

PYTORCHJOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
Json = dict[str, Any]


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[RestClient]:
    async with rest_api(tmp_path, with_training_jobs=True) as found:
        yield found


async def report(rest: RestClient, command: Command, *, executed: bool, text: str) -> None:
    """Do what the job controller does: write the result and, if executed, the phase."""
    result = OperationResult(command.operation, executed, text)
    mark = msgspec.json.encode((result,)).decode()
    status: Json = {"controlledResources": {OPERATIONS: mark}}
    if executed:
        status["state"] = {"phase": text}
    assert command.target is not None
    await rest.client.patch(
        JOBS, command.target.name, {"status": status}, namespace="default", subresource="status"
    )
    await rest.drop_command(command)


async def set_phase(rest: RestClient, phase: str, job: str = "train") -> None:
    status = {"status": {"state": {"phase": phase, "message": "for a reason"}}}
    await rest.client.patch(JOBS, job, status, namespace="default", subresource="status")


async def one_command(rest: RestClient) -> Command:
    """The only Command, once it exists."""
    found: list[Command] = []

    async def exists() -> bool:
        found[:] = await rest.commands()
        return len(found) == 1

    await wait_until_true(exists)
    return found[0]


# Scope of a job.


SCOPES: list[tuple[Json, str, str, Json]] = [
    ({}, "RestartJob", "job", {}),
    ({"task": "t"}, "RestartTask", "task", {TASK: "t"}),
    ({"pod": "train-t-0"}, "RestartPod", "pod", {POD: "train-t-0"}),
    (
        {"task": "t", "partition": "0"},
        "RestartPartition",
        "partition",
        {TASK: "t", PARTITION: "0"},
    ),
]


async def test_restart_of_a_part_names_it_in_annotations(rest: RestClient) -> None:
    for scope, action, target, annotations in SCOPES:
        await restart(rest, scope, action=action, target=target, annotations=annotations)


async def restart(
    rest: RestClient, scope: Json, *, action: str, target: str, annotations: Json
) -> None:
    _, body = await rest.call("POST", f"{PATH}/commands", json={"action": "restart", **scope})
    assert (body["action"], body["target"], body["kind"]) == (action, target, "jobs")
    assert {name: body[name] for name in scope} == scope
    command = await one_command(rest)
    assert command.metadata.annotations == {OPERATION: body["id"], **annotations}
    await report(rest, command, executed=False, text="the job has no pods of it")
    outcome = await rest.wait_outcome(body["id"])
    assert (outcome["state"], outcome["detail"]) == ("Ignored", "the job has no pods of it")


INVALID_SCOPES: list[tuple[Json, str]] = [
    ({"action": "suspend", "task": "t"}, "action"),
    ({"action": "terminate", "pod": "train-t-0"}, "action"),
    ({"action": "restart", "task": "t", "pod": "train-t-0"}, "pod"),
    ({"action": "restart", "partition": "0"}, "partition"),
    ({"action": "restart", "task": "other"}, "task"),
    ({"action": "restart", "pod": "train-t-1"}, "pod"),
    ({"action": "restart", "pod": "train-t-00"}, "pod"),
    ({"action": "restart", "pod": "other-t-0"}, "pod"),
    ({"action": "open"}, "action"),
]


async def test_a_target_that_the_action_or_the_job_lacks_is_rejected(rest: RestClient) -> None:
    for body, field in INVALID_SCOPES:
        status, problem = await rest.call("POST", f"{PATH}/commands", json=body)
        assert (status, problem["errors"][0]["field"]) == (422, field), problem
    assert await rest.commands() == []


async def test_a_conflict_lists_the_phases_that_allow_the_action(rest: RestClient) -> None:
    await set_phase(rest, "Completed")
    status, problem = await rest.call("POST", f"{PATH}/commands", json={"action": "resume"})
    assert (status, problem["allowed_phases"]) == (409, ["Aborting", "Aborted"])


async def test_history_is_paged_by_cursors(rest: RestClient) -> None:
    ids = [(await rest.command("restart"))["id"] for _ in range(5)]
    found, query = [], "limit=2"
    while query:
        _, page = await rest.call("GET", f"{PATH}/commands?{query}")
        found += [item["id"] for item in page["items"]]
        query = f"limit=2&cursor={page['next_cursor']}" if page["next_cursor"] else ""
    assert found == ids[::-1]
    for cursor in ("x", "%00", "W10="):
        assert (await rest.call("GET", f"{PATH}/commands?cursor={cursor}"))[0] == 422
    _, page = await rest.call("GET", f"{PATH}/commands?limit=1")
    other = f"/v1/namespaces/default/jobs/x/commands?cursor={page['next_cursor']}"
    assert (await rest.call("GET", other))[0] == 422


# Queues.


async def drop_queue_command(rest: RestClient, queue: str, state: str) -> None:
    """Do what the queue controller does."""
    command = await one_command(rest)
    assert command.target is not None and command.target.kind == "Queue"
    status = {"status": {"state": state}}
    await rest.client.patch(QUEUES, queue, status, subresource="status")
    await rest.drop_command(command)


async def queue_outcome(rest: RestClient, queue: str, id_: str) -> Json:
    found: Json = {}

    async def is_settled() -> bool:
        found.update((await rest.call("GET", f"/v1/queues/{queue}/commands/{id_}"))[1])
        return found["state"] not in ("Accepted", "Issued")

    await wait_until_true(is_settled)
    return found


async def test_queues_are_closed_and_opened(rest: RestClient) -> None:
    await rest.client.create(QUEUES, {"metadata": {"name": "q"}, "spec": {"weight": 1}})
    path = "/v1/queues/q/commands"
    status, body = await rest.call("POST", path, json={"action": "close"})
    assert (status, body["action"], body["target"], body["queue"], body["job"]) == (
        202, "CloseQueue", "queue", "q", "",
    )  # fmt: skip
    await drop_queue_command(rest, "q", "Closing")
    outcome = await queue_outcome(rest, "q", body["id"])
    assert (outcome["state"], outcome["detail"]) == ("Executed", "the queue is Closing")
    _, body = await rest.call("POST", path, json={"action": "open"})
    await drop_queue_command(rest, "q", "Closed")
    outcome = await queue_outcome(rest, "q", body["id"])
    assert outcome["state"] == "Ignored"
    _, listed = await rest.call("GET", path)
    assert [item["action"] for item in listed["items"]] == ["OpenQueue", "CloseQueue"]
    assert (await rest.call("POST", "/v1/queues/none/commands", json={"action": "open"}))[0] == 404
    assert (await rest.call("POST", path, json={"action": "suspend"}))[0] == 422
    assert (await rest.call("GET", f"{path}/none"))[0] == 404


# Jobs of other kinds.

BATCH: Json = {
    "metadata": {"name": "b"},
    "spec": {
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "c", "image": "busybox"}],
            }
        }
    },
}
PYTORCH: Json = {
    "metadata": {"name": "p"},
    "spec": {
        "pytorchReplicaSpecs": {
            "Worker": {
                "template": {"spec": {"containers": [{"name": "pytorch", "image": "busybox"}]}}
            }
        }
    },
}


@pytest.mark.parametrize(
    ("resource", "segment", "job"),
    [(BATCH_JOBS, "batchjobs", BATCH), (PYTORCHJOBS, "pytorchjobs", PYTORCH)],
)
async def test_jobs_of_other_kinds_are_suspended_by_a_patch(
    rest: RestClient, resource: Resource, segment: str, job: Json
) -> None:
    await rest.client.create(resource, job, namespace="default")
    name = job["metadata"]["name"]
    path = f"/v1/namespaces/default/{segment}/{name}/commands"
    for action, recorded, value in (("suspend", "Suspend", True), ("resume", "Resume", False)):
        status, body = await rest.call("POST", path, json={"action": action})
        assert (status, body["action"], body["state"]) == (202, recorded, "Executed"), body
        live: Json = await rest.client.get(resource, name, namespace="default", view=dict)
        spec = live["spec"].get("runPolicy", live["spec"])
        assert spec["suspend"] is value
    for action in ("restart", "terminate"):
        status, problem = await rest.call("POST", path, json={"action": action})
        assert (status, problem["errors"][0]["field"]) == (422, "action")
    _, listed = await rest.call("GET", path)
    assert [(item["action"], item["kind"]) for item in listed["items"]] == [
        ("Resume", segment),
        ("Suspend", segment),
    ]
    assert await rest.commands() == []


# Many jobs.


async def create_jobs(rest: RestClient, *names: str, **labels: str) -> None:
    for name in names:
        meta = {"name": name, "labels": labels}
        await rest.client.create(JOBS, JOB | {"metadata": meta}, namespace="default")

    async def are_listed() -> bool:
        _, body = await rest.call("GET", "/v1/namespaces/default/jobs?limit=500")
        return {*names} <= {item["name"] for item in body["items"]}

    await wait_until_true(are_listed)


async def test_bulk_command_has_a_result_for_each_match(rest: RestClient) -> None:
    await create_jobs(rest, "a", "b", "c", team="x")
    await set_phase(rest, "Completed", "b")
    body = {"action": "suspend", "label_selector": "team=x", "dry_run": True}
    status, dry = await rest.call("POST", "/v1/namespaces/default/commands", json=body)
    assert status == 200
    assert [(row["name"], row["status"]) for row in dry["results"]] == [
        ("a", 200), ("b", 409), ("c", 200),
    ]  # fmt: skip
    assert await rest.commands() == []
    body["dry_run"] = False
    _, done = await rest.call("POST", "/v1/commands", json=body)
    assert [(row["name"], row["status"]) for row in done["results"]] == [
        ("a", 202), ("b", 409), ("c", 202),
    ]  # fmt: skip
    assert done["results"][0]["command"]["action"] == "AbortJob"
    assert done["results"][1]["problem"]["allowed_phases"]
    targets = [each.target.name for each in await rest.commands() if each.target]
    assert sorted(targets) == ["a", "c"]


FILTERS: list[tuple[Json, list[str]]] = [
    ({"names": ["a", "train", "none"]}, ["a", "train"]),
    ({"phase": ["Completed"]}, ["b"]),
    ({"queue": "default", "names": ["a"]}, ["a"]),
    ({"queue": "other"}, []),
    ({"label_selector": ""}, ["a", "b", "train"]),
]


async def test_bulk_filters_select(rest: RestClient) -> None:
    await create_jobs(rest, "a", "b")
    await set_phase(rest, "Completed", "b")

    async def selects(filters: Json, matches: list[str]) -> bool:
        body = {"action": "abort", "dry_run": True, **filters}
        _, found = await rest.call("POST", "/v1/commands", json=body)
        return [row["name"] for row in found["results"]] == matches

    for filters, matches in FILTERS:
        await wait_until_true(partial(selects, filters, matches))


INVALID_BULK: list[Json] = [
    {"action": "abort"},
    {"action": "abort", "names": []},
    {"action": "abort", "phase": []},
    {"action": "abort", "label_selector": "a in"},
    {"action": "open", "names": ["a"]},
    {"action": "restart", "kind": "batchjobs", "names": ["a"]},
    {"action": "abort", "names": ["A"]},
]


async def test_invalid_bulk_commands_are_rejected(rest: RestClient) -> None:
    for body in INVALID_BULK:
        assert (await rest.call("POST", "/v1/commands", json=body))[0] == 422, body


# Waiting.


async def waiting(rest: RestClient, action: str, seconds: int = 60) -> asyncio.Task[Any]:
    path = f"{PATH}/commands?wait={seconds}s"
    return asyncio.create_task(rest.call("POST", path, json={"action": action}))


async def test_wait_returns_when_the_phase_is_reached(rest: RestClient) -> None:
    response = await waiting(rest, "suspend")
    await report(rest, await one_command(rest), executed=True, text="Aborting")
    await set_phase(rest, "Aborted")
    status, body = await response
    assert (status, body["phase"], body["reached"], body["detail"]) == (200, "Aborted", True, "")
    assert body["command"]["state"] == "Executed"


async def test_wait_returns_why_the_phase_is_not_reached(rest: RestClient) -> None:
    response = await waiting(rest, "suspend")
    await report(rest, await one_command(rest), executed=False, text="it changes nothing")
    _, body = await response
    assert (body["reached"], body["detail"]) == (False, "it changes nothing")
    response = await waiting(rest, "restart")
    await report(rest, await one_command(rest), executed=True, text="Restarting")
    await set_phase(rest, "Failed")
    _, body = await response
    assert (body["reached"], body["detail"]) == (False, "the job is Failed: for a reason")


async def test_wait_ends_with_the_time(rest: RestClient) -> None:
    _, body = await (await waiting(rest, "restart", seconds=0))
    assert not body["reached"]
    assert "no outcome yet" in body["detail"]
    for wait in ("61s", "-1s", "1", "1m"):
        path = f"{PATH}/commands?wait={wait}"
        assert (await rest.call("POST", path, json={"action": "abort"}))[0] == 422


async def test_wait_ends_when_the_server_stops(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path) as (server, client),
        starting_api(client, sqlite(tmp_path)) as (url, ready, serving),
        rest_at(url, server, client) as rest,
    ):
        await ready.wait()
        response = await waiting(rest, "abort")
        await one_command(rest)
        serving.cancel()
        status, body = await response
        assert (status, body["reached"]) == (200, False)


async def test_client_that_disconnects_while_waiting_changes_nothing(
    rest: RestClient,
) -> None:
    async with aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {rest.token}"}
        url = f"{rest.url}{PATH}/commands?wait=60s"
        sending = asyncio.create_task(
            session.post(url, json={"action": "suspend"}, headers=headers).__aenter__()
        )
        command = await one_command(rest)
        sending.cancel()
        await asyncio.wait((sending,))
    await report(rest, command, executed=True, text="Aborting")
    outcome = await rest.wait_outcome(command.operation)
    assert outcome["state"] == "Executed"


async def test_patch_whose_response_was_lost_is_resolved(
    rest: RestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.client.create(BATCH_JOBS, BATCH, namespace="default")
    patch = Client.patch

    async def loses_the_response(self: Client, *given: Any, **more: Any) -> Any:
        await patch(self, *given, **more)
        raise ConnectionLostError("the response was lost")

    await rest.client.patch(JOBS, "train", {"spec": {"suspend": True}}, namespace="default")

    async def is_suspended() -> bool:
        return (await rest.call("GET", "/v1/namespaces/default/jobs/train"))[1]["suspend"] is True

    await wait_until_true(is_suspended)
    commands = (("batchjobs/b", "suspend", "true"), ("jobs/train", "resume", "false"))
    for job, action, value in commands:
        path = f"/v1/namespaces/default/{job}/commands"
        with monkeypatch.context() as patched:
            patched.setattr(Client, "patch", loses_the_response)
            assert (await rest.call("POST", path, json={"action": action}))[0] == 503
        [item] = (await rest.call("GET", path))[1]["items"]
        url, outcome = f"{path}/{item['id']}", ("Executed", f"spec.suspend is {value}")

        async def is_executed(url: str = url, outcome: tuple[str, str] = outcome) -> bool:
            _, found = await rest.call("GET", url)
            return (found["state"], found["detail"]) == outcome

        await wait_until_true(is_executed)
