"""REST API: authorization, validation, commands and their outcomes."""

import contextlib
from pathlib import Path

import aiohttp
import pytest
from support.controller_api import ControllerApi
from support.polling import wait_until_true
from support.rest import JOB, PATH, RestClient, running_api, sqlite, starting_api
from yarl import URL

from batholith.model.names import COMMANDS, JOBFLOWS, JOBS
from batholith.testing import RequestMatcher


@pytest.mark.parametrize(
    ("action", "command_action"),
    [
        ("suspend", "AbortJob"),
        ("abort", "AbortJob"),
        ("resume", "ResumeJob"),
        ("restart", "RestartJob"),
        ("terminate", "TerminateJob"),
        ("complete", "CompleteJob"),
    ],
)
async def test_an_action_creates_a_command_for_the_job(
    rest: RestClient, action: str, command_action: str
) -> None:
    body = await rest.command(action)
    assert (body["action"], body["who"], body["state"]) == (command_action, "admin", "Issued")
    [command] = await rest.commands()
    assert command.action == command_action
    assert command.target is not None
    assert (command.target.kind, command.target.name) == ("Job", "train")
    assert command.metadata.controller == command.target
    assert command.metadata.name.startswith(f"train-{command_action.lower()}-")


async def test_the_outcome_is_what_the_jobs_status_shows(rest: RestClient) -> None:
    body = await rest.command("suspend")
    [command] = await rest.commands()
    await rest.complete_command(command, phase="Aborting")
    outcome = await rest.wait_outcome(body["id"])
    assert (outcome["state"], outcome["detail"]) == ("Executed", "the job entered Aborting")
    assert outcome["finished_at"] is not None


async def test_commands_in_quick_succession_have_separate_outcomes(rest: RestClient) -> None:
    ids = []
    for action, phase in (("suspend", "Aborting"), ("resume", "Restarting")) * 5:
        ids.append((await rest.command(action))["id"])
        [command] = await rest.commands()
        await rest.complete_command(command, phase=phase)
    assert {(await rest.wait_outcome(id_))["state"] for id_ in ids} == {"Executed"}


async def test_a_command_without_effect_is_ignored(rest: RestClient) -> None:
    body = await rest.command("resume")
    [command] = await rest.commands()
    await rest.drop_command(command)
    assert (await rest.wait_outcome(body["id"]))["state"] == "Ignored"


async def test_a_command_fails_if_its_job_is_deleted(rest: RestClient) -> None:
    body = await rest.command("restart")
    [command] = await rest.commands()
    await rest.client.delete(JOBS, "train", namespace="default")
    with contextlib.suppress(Exception):
        await rest.drop_command(command)
    outcome = await rest.wait_outcome(body["id"])
    assert (outcome["state"], outcome["detail"]) == ("Failed", "the job was deleted")


async def test_open_commands_are_resolved_after_a_restart(rest: RestClient, tmp_path: Path) -> None:
    body = await rest.command("suspend")
    [command] = await rest.commands()
    async with running_api(rest.client, sqlite(tmp_path)) as url:
        await rest.complete_command(command, phase="Aborting")
        rest.url = url
        assert (await rest.wait_outcome(body["id"]))["state"] == "Executed"


async def test_the_history_is_newest_first_and_outlives_the_job(rest: RestClient) -> None:
    for action in ("suspend", "resume", "restart"):
        await rest.command(action)
    await rest.client.delete(JOBS, "train", namespace="default")
    _, body = await rest.call("GET", f"{PATH}/commands")
    assert [item["action"] for item in body["items"]] == ["RestartJob", "ResumeJob", "AbortJob"]


async def test_jobs_are_listed_as_summaries(rest: RestClient) -> None:
    status, body = await rest.call("GET", PATH)
    assert status == 200
    assert (body["name"], body["phase"], body["replicas"]) == ("train", "Pending", 1)
    _, listed = await rest.call("GET", "/v1/namespaces/default/jobs")
    assert listed["items"] == [body]
    assert (await rest.call("GET", "/v1/jobs"))[1]["items"] == [body]
    assert (await rest.call("GET", "/v1/namespaces/other/jobs"))[1]["items"] == []


async def test_job_flows_are_listed_with_their_jobs(rest: RestClient) -> None:
    flows = [{"name": "a"}, {"name": "b", "dependsOn": {"targets": ["a"]}}]
    body = {"metadata": {"name": "steps"}, "spec": {"flows": flows}}
    await rest.client.create(JOBFLOWS, body, namespace="default")
    failed = {"phase": "Failed", "reason": "JobFailed", "message": "job steps-a is Failed"}
    status = {
        "state": {"phase": "Failed"},
        "jobStatusList": [{"name": "steps-a", "state": "Failed"}],
        "conditions": {"steps-a": failed},
    }
    await rest.client.patch(
        JOBFLOWS, "steps", {"status": status}, namespace="default", subresource="status"
    )
    path = "/v1/namespaces/default/jobflows"
    code, found = await rest.call("GET", f"{path}/steps")
    assert (code, found["phase"], found["retain_policy"]) == (200, "Failed", "retain")
    assert found["jobs"] == [
        {"flow": "a", "job": "steps-a", "targets": [], **failed},
        {
            "flow": "b",
            "job": "steps-b",
            "targets": ["a"],
            "phase": "",
            "reason": "",
            "message": "",
        },
    ]
    assert (await rest.call("GET", path))[1]["items"] == [found]
    assert (await rest.call("GET", "/v1/jobflows"))[1]["items"] == [found]
    assert (await rest.call("GET", "/v1/namespaces/other/jobflows"))[1]["items"] == []
    code, problem = await rest.call("GET", f"{path}/absent")
    assert (code, problem["detail"]) == (
        404,
        "job flow 'absent' not found in namespace 'default'",
    )
    assert (await rest.call("GET", path, token="wrong"))[0] == 401


@pytest.mark.parametrize(
    ("data", "status", "expected"),
    [
        (b"{not json", 400, "not JSON"),
        (b"", 422, "body"),
        (b"[]", 422, "body"),
        (b'{"action": "dance"}', 422, "action"),
        (b'{"action": 7}', 422, "action"),
        (b"{}", 422, "action"),
        (b'{"action": "abort", "force": true}', 422, "force"),
    ],
)
async def test_errors_of_an_invalid_body_name_the_field(
    rest: RestClient, data: bytes, status: int, expected: str
) -> None:
    got, body = await rest.call("POST", f"{PATH}/commands", data=data)
    assert got == status, body
    assert expected in body["detail"]
    assert await rest.commands() == []
    assert (await rest.call("GET", f"{PATH}/commands"))[1]["items"] == []


async def test_a_missing_job_is_a_404(rest: RestClient) -> None:
    for method, path in (
        ("GET", "/v1/namespaces/default/jobs/none"),
        ("GET", f"{PATH}/commands/none"),
    ):
        assert (await rest.call(method, path))[0] == 404
    status, body = await rest.call(
        "POST", "/v1/namespaces/default/jobs/none/commands", json={"action": "abort"}
    )
    assert (status, body["detail"]) == (404, "job 'none' not found in namespace 'default'")


STRANGE = ("", "a%2Fb", "%2E%2E", "x%252f", "a%00b", "A", "a..b", "-a", "a%0A", "a" * 254, "a%3Fb")


async def test_invalid_names_are_rejected(rest: RestClient) -> None:
    """A request must not reach another object than the authorized one."""
    headers = {"Authorization": f"Bearer {rest.token}"}
    for name in STRANGE:
        for method, path in (
            ("GET", f"/v1/namespaces/default/jobs/{name}/commands"),
            ("POST", f"/v1/namespaces/default/jobs/{name}/commands"),
            ("POST", f"/v1/namespaces/{name}/jobs/train/commands"),
            ("GET", f"{PATH}/commands/{name or '_'}"),
        ):
            url = URL(rest.url + path, encoded=True)
            order = {"action": "abort"} if method == "POST" else None
            async with rest.session.request(method, url, headers=headers, json=order) as response:
                assert response.status in (404, 422), f"{method} {path}: {await response.text()}"
                assert response.content_type == "application/problem+json"
    assert await rest.commands() == []


async def test_a_job_with_a_name_of_maximum_length_accepts_commands(rest: RestClient) -> None:
    name = "a" * 253
    job = JOB | {"metadata": {"name": name}}
    await rest.client.create(JOBS, job, namespace="default")
    path = f"/v1/namespaces/default/jobs/{name}/commands"
    status, body = await rest.call("POST", path, json={"action": "terminate"})
    assert (status, body["state"]) == (202, "Issued")
    [command] = await rest.commands()
    assert len(command.metadata.name) == 253
    assert command.target is not None
    assert command.target.name == name


async def test_a_finished_job_accepts_no_commands(rest: RestClient) -> None:
    state = {"status": {"state": {"phase": "Completed"}}}
    await rest.client.patch(JOBS, "train", state, namespace="default", subresource="status")
    status, body = await rest.call("POST", f"{PATH}/commands", json={"action": "restart"})
    assert (status, body["detail"]) == (409, "job 'train' is Completed and accepts no commands")
    assert await rest.commands() == []


async def test_a_job_that_its_manifest_suspends_is_resumed_by_a_patch(rest: RestClient) -> None:
    await rest.client.patch(JOBS, "train", {"spec": {"suspend": True}}, namespace="default")

    async def is_suspended() -> bool:
        return (await rest.call("GET", PATH))[1]["suspend"] is True

    await wait_until_true(is_suspended)
    status, body = await rest.call("POST", f"{PATH}/commands", json={"action": "resume"})
    assert (status, body["state"], body["action"]) == (202, "Executed", "Resume")
    assert body["detail"] == "spec.suspend is false"
    job = await rest.client.get(JOBS, "train", namespace="default", view=dict)
    assert job["spec"]["suspend"] is False
    assert await rest.commands() == []


async def test_api_descriptions_require_no_token(rest: RestClient) -> None:
    _, description = await rest.call("GET", "/openapi.json", token="")
    assert "/v1/namespaces/{namespace}/{kind}/{name}/commands" in description["paths"]
    async with rest.session.get(f"{rest.url}/docs") as page:
        text = await page.text()
    assert "/v1/namespaces/{namespace}/{kind}" in text
    assert "http://" not in text
    assert "https://" not in text


async def test_livez_and_readyz(rest: RestClient) -> None:
    for path in ("/healthz", "/livez", "/readyz"):
        async with rest.session.get(rest.url + path) as response:
            assert (response.status, await response.text()) == (200, "ok")


async def test_not_ready_before_informers_are_synced(tmp_path: Path) -> None:
    async with ControllerApi(JOBS, COMMANDS) as api, api.client() as client:
        api.faults.hold(RequestMatcher(count=None))
        async with (
            starting_api(client, sqlite(tmp_path)) as (url, _, _),
            aiohttp.ClientSession() as session,
        ):

            async def not_followed() -> bool:
                async with session.get(f"{url}/readyz") as response:
                    not_synced = (503, "[-]informers: not synced\n")
                    return (response.status, await response.text()) == not_synced

            await wait_until_true(not_followed)
