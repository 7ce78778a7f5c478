"""The page of one job."""

import html
import json
import re
from datetime import UTC, datetime

import pytest
from support.pages import PagesClient
from support.polling import wait_until_true
from support.rest import JOB
from support.simulations import leading

from batholith.api.pages.rendering import planned_start
from batholith.model.command import Command
from batholith.model.names import COMMANDS, JOB_NAME, JOB_NAMESPACE, JOBS, PODGROUPS, PODS, WHY
from batholith.model.scheduler_questions import (
    FreeAmount,
    GangAhead,
    Holder,
    JobRef,
    WaitDetails,
    WaitRequest,
)
from batholith.wire.jobs import PlannedStart

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = "/jobs/default/jobs/train"
SCRIPT = "<script>alert(1)</script>"

COMPETITION = WaitDetails(
    position=3,
    waiting=12,
    ahead=(GangAhead(JobRef("default", JOBS.api_version, "Job", "first"), {"cpu": "8"}),),
    free=(
        FreeAmount("cpu", "8", "4", "64", queue="default"),
        FreeAmount("cpu", "8", "5", "32", group="a100", nodes=4, usable=3, largest="2"),
    ),
    holders=(
        Holder(
            JobRef("default", JOBS.api_version, "Job", "second"),
            "default",
            {"cpu": "4", "memory": "1Gi"},
            2,
            60.0,
            "limit",
        ),
        Holder(JobRef("default", "v1", "Pod", "single"), "", {"cpu": "4"}, 1),
    ),
)


async def test_a_job_is_shown_with_the_reason_why_it_waits(pages: PagesClient) -> None:
    status, text = await pages.get(PAGE)
    assert status == 200
    assert 'id="why"' in text
    assert 'id="timeline"' in text
    assert "The job has no pods now." in text
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|hx-on|hx-vals", text)


async def test_pods_have_their_exit_codes_and_times(pages: PagesClient) -> None:
    job = {**JOB, "metadata": {"name": "ended"}}
    created = await pages.client.create(JOBS, job, namespace="default", view=dict)
    owner = {"name": "ended", "uid": created["metadata"]["uid"], "controller": True}
    owner |= {"apiVersion": JOBS.api_version, "kind": JOBS.kind}
    labels = {JOB_NAME: "ended", JOB_NAMESPACE: "default"}
    metadata = {"name": "ended-t-0", "labels": labels, "ownerReferences": [owner]}
    spec = {"containers": [{"name": "main", "image": "busybox"}]}
    await pages.client.create(PODS, {"metadata": metadata, "spec": spec}, namespace="default")
    times = {"startedAt": "2026-01-02T10:00:00Z", "finishedAt": "2026-01-02T10:01:00Z"}
    container = {"name": "main", "image": "busybox", "imageID": "", "ready": False}
    container |= {"restartCount": 2, "state": {"terminated": {"exitCode": 7, **times}}}
    status = {"phase": "Failed", "startTime": times["startedAt"], "containerStatuses": [container]}
    await pages.client.patch(
        PODS, "ended-t-0", {"status": status}, namespace="default", subresource="status"
    )

    async def has_ended() -> bool:
        return ">Failed<" in (await pages.get("/jobs/default/jobs/ended"))[1]

    await wait_until_true(has_ended)
    _, text = await pages.get("/jobs/default/jobs/ended")
    row = text.partition('<th scope="row">ended-t-0</th>')[2].partition("</tr>")[0]
    assert re.findall(r'<td class="number">(\d*)</td>', row) == ["2", "7"]
    assert "2026-01-02 10:00:00" in row
    assert "2026-01-02 10:01:00" in row
    await pages.client.delete(JOBS, "ended", namespace="default")


async def test_a_fragment_is_what_changes(pages: PagesClient) -> None:
    _, text = await pages.get(PAGE, fragment=True)
    assert text.startswith('<div id="details"')
    assert 'id="log"' not in text


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/default/jobs/missing",
        "/jobs/default/nonsense/train",
        "/jobs/default/jobs/train%2Fpods",
        "/jobs/..%2F/jobs/train",
        f"/jobs/default/jobs/{SCRIPT.replace('/', '%2F')}",
        "/jobs/default/jobs/missing/manifest",
    ],
)
async def test_a_job_that_does_not_exist_is_an_error_page(pages: PagesClient, path: str) -> None:
    status, text = await pages.get(path)
    assert status in (404, 422)
    assert 'role="alert"' in text
    assert SCRIPT not in text


async def test_texts_of_the_job_are_escaped(pages: PagesClient) -> None:
    metadata = {"metadata": {"annotations": {"note": SCRIPT, "batholith.io/user": SCRIPT}}}
    await pages.client.patch(JOBS, "train", metadata, namespace="default")
    state = {"phase": "Running", "reason": SCRIPT, "message": f"'{SCRIPT}\""}
    status = {"status": {"state": state}}
    await pages.client.patch(JOBS, "train", status, namespace="default", subresource="status")
    _, text = await pages.get(PAGE)
    assert html.escape(SCRIPT) in text
    assert SCRIPT not in text
    _, manifest = await pages.get(f"{PAGE}/manifest")
    assert html.escape(SCRIPT) in manifest
    assert SCRIPT not in manifest
    assert "kind: Job" in manifest


async def test_a_command_is_sent_and_shown_with_its_user(pages: PagesClient) -> None:
    running = {"status": {"state": {"phase": "Running"}}}
    await pages.client.patch(JOBS, "train", running, namespace="default", subresource="status")
    status, text = await pages.post(f"{PAGE}/commands", {"action": "suspend"})
    assert (status, "1 job commanded" in text) == (200, True)
    (command,) = (await pages.client.list(COMMANDS, view=Command)).items
    assert command.action == "AbortJob"
    _, text = await pages.get(PAGE)
    assert re.search(r"<td>AbortJob</td><td>admin</td>", text)


@pytest.mark.parametrize("action", ["", "nonsense", SCRIPT])
async def test_an_unknown_command_is_rejected(pages: PagesClient, action: str) -> None:
    status, text = await pages.post(f"{PAGE}/commands", {"action": action})
    assert (status, 'role="alert"' in text) == (200, True)
    assert SCRIPT not in text
    assert (await pages.client.list(COMMANDS, view=Command)).items == []


async def test_the_stream_of_a_job_reports_changes_without_its_content(pages: PagesClient) -> None:
    async with pages.session.get(f"{pages.url}/live{PAGE}") as stream:
        assert stream.content_type == "text/event-stream"
        received = await stream.content.readuntil(b"event: synced\n")
        labels = {"metadata": {"labels": {"changed": "yes"}}}
        await pages.client.patch(JOBS, "train", labels, namespace="default")
        received += await stream.content.readuntil(b"event: change\n")
        received += await stream.content.readuntil(b"\n\n")
    assert b"event: list" not in received
    assert b"train" not in received
    position = received.rpartition(b"id: ")[2].split(b"\n")[0].decode()
    headers = {"Last-Event-ID": position}
    async with pages.session.get(f"{pages.url}/live{PAGE}", headers=headers) as stream:
        received = await stream.content.readuntil(b"event: synced\n")
    assert b"event: change" not in received


async def test_a_position_that_is_not_known_is_rejected(pages: PagesClient) -> None:
    headers = {"Last-Event-ID": "nonsense"}
    async with pages.session.get(f"{pages.url}/live{PAGE}", headers=headers) as stream:
        assert stream.status == 410


async def test_a_log_of_a_pod_that_does_not_exist_is_an_error(pages: PagesClient) -> None:
    url = f"{pages.url}/live/logs{PAGE[5:]}"
    async with pages.session.get(f"{url}?pod=none") as response:
        assert response.status == 404
    async with pages.session.get(f"{url}?pod=../../x") as response:
        assert response.status in (404, 422)


async def test_a_job_that_waits_has_its_expected_start(pages: PagesClient) -> None:
    found = await pages.client.create(
        JOBS, {**JOB, "metadata": {"name": "soon"}}, namespace="default", view=dict
    )
    uid = found["metadata"]["uid"]
    why = {
        "stage": "nodes",
        "reason": "NotEnoughResources",
        "message": "2 of 4 pods cannot be scheduled",
        "queue": {"name": "default", "position": 3, "waiting": 12},
        "start": {
            "earliest": "2026-01-01T10:00:00Z",
            "expected": "2026-01-01T10:20:00Z",
            "latest": "2026-01-01T11:00:00Z",
            "basis": "limits",
        },
    }
    owner = {"apiVersion": JOBS.api_version, "kind": "Job", "name": "soon", "uid": uid}
    group = {
        "metadata": {
            "name": f"soon-{uid}",
            "annotations": {WHY: json.dumps(why)},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"minMember": 1, "queue": "default"},
        "status": {"phase": "Pending"},
    }
    await pages.client.create(PODGROUPS, group, namespace="default")

    async def is_shown() -> bool:
        return "Expected start" in (await pages.get("/jobs/default/jobs/soon"))[1]

    await wait_until_true(is_shown)
    _, text = await pages.get("/jobs/default/jobs/soon")
    probably = "probably 2026-01-01 10:20:00, at the latest 2026-01-01 11:00:00 UTC (by limits)"
    assert f'<dd id="start">2026-01-01 10:00:00, {probably}</dd>' in text

    async def explain_wait(_: WaitRequest) -> WaitDetails | None:
        return COMPETITION

    shown: list[str] = []

    async def has_competition() -> bool:
        shown.append((await pages.get("/jobs/default/jobs/soon"))[1])
        return 'id="holders"' in shown[-1]

    async with leading(pages.client, explain_wait=explain_wait):
        await wait_until_true(has_competition)
    text = shown[-1]
    assert "queue default</td>" in text
    assert "nodes a100: 3 of 4 usable, at most 2 on one" in text
    assert '<a href="/jobs/default/jobs/first">default/first</a>, 8 cpu' in text
    assert "<p>and 1 more</p>" in text
    assert "4 cpu, 1Gi memory" in text
    assert "1970-01-01 00:01:00 (by limit)" in text
    assert "not known" in text
    _, text = await pages.get("/jobs?search=soon")
    assert "<small>3 of 12; starts from 2026-01-01 10:00:00 UTC</small>" in text


async def test_a_start_that_waits_for_unknown_ends_has_no_time() -> None:
    """The earliest time is that of the estimate, which has passed when it is read."""
    start = PlannedStart(earliest=datetime(2026, 1, 1, tzinfo=UTC), basis="unknown")
    assert planned_start(start) == "not known: it waits for jobs whose end is not known"


async def test_a_finished_job_runs_again_under_a_new_name(pages: PagesClient) -> None:
    body = {**JOB, "metadata": {"name": "done-123456789", "labels": {"team": "vision"}}}
    await pages.client.create(JOBS, body, namespace="default")
    page = "/jobs/default/jobs/done-123456789"
    assert "/rerun" not in (await pages.get(page))[1]
    status = {"status": {"state": {"phase": "Failed"}}}
    await pages.client.patch(
        JOBS, "done-123456789", status, namespace="default", subresource="status"
    )
    assert f'hx-post="{page}/rerun"' in (await pages.get(page))[1]
    code, text = await pages.post(f"{page}/rerun", {})
    assert code == 200
    match = re.search(r'href="/jobs/default/jobs/(done-\d{9})"', text)
    assert match is not None
    assert match[1] != "done-123456789"
    again = await pages.client.get(JOBS, match[1], namespace="default", view=dict)
    assert again["metadata"]["labels"] == {"team": "vision"}
    assert (await pages.post(f"{page}/rerun", {}, origin="http://evil.example"))[0] == 403
