"""The pages of the history."""

import csv
import html
import io
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from markupsafe import escape
from support.pages import PagesClient, pages_client
from support.polling import wait_until_true
from support.rest import JOB

from batholith.api.history.tasks import HistorySettings
from batholith.api.pages.rendering import amount
from batholith.api.pages.usage_chart import HEIGHT, LEFT, OTHERS, WIDTH, draw
from batholith.model import times
from batholith.model.names import JOBS, PODS
from batholith.wire.history import Usage, UsagePoint, UsageSeries

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
CONTAINER = {"name": "main", "image": "busybox"}
ATTACK = '=cmd|"/c calc"<script>'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server_of_pages(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PagesClient]:
    """With a history that has a job that was deleted."""
    settings = HistorySettings(record=True)
    async with pages_client(tmp_path_factory.mktemp("pages"), history=settings) as pages:
        await pages.sign_in()
        await wait_until_true(lambda: shows(pages, "/history", ">train<"))
        await pages.client.create(JOBS, {**JOB, "metadata": {"name": "old"}}, namespace="default")
        status = {"status": {"state": {"phase": "Failed", "reason": "R", "message": ATTACK}}}
        await pages.client.patch(JOBS, "old", status, namespace="default", subresource="status")
        await wait_until_true(lambda: shows(pages, "/history?phase=Failed", ">old<"))
        await pages.client.delete(JOBS, "old", namespace="default")
        await wait_until_true(lambda: is_deleted(pages))
        yield pages


async def shows(pages: PagesClient, path: str, text: str) -> bool:
    return text in (await pages.get(path))[1]


async def is_deleted(pages: PagesClient) -> bool:
    return bool((await rows(pages, "name=old"))[0]["deleted_at"])


async def rows(pages: PagesClient, query: str = "") -> list[dict[str, str]]:
    status, text = await pages.get(f"/history/jobs.csv?{query}")
    assert status == 200
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.asyncio(loop_scope="module")
async def test_a_deleted_job_is_found_and_shown(pages: PagesClient) -> None:
    assert await shows(pages, "/history?name=old&namespace=default", ">old<")
    assert not await shows(pages, "/history?name=old&phase=Running", ">old<")
    assert not await shows(pages, "/history?name=old&account=physics", ">old<")
    assert not await shows(pages, "/history?to=2020-01-01&name=old", ">old<")
    (row,) = await rows(pages, "name=old")
    status, text = await pages.get(f"/history/jobs/{row['uid']}")
    assert status == 200
    assert escape(ATTACK) in text
    assert ATTACK not in text
    assert "minAvailable: 1" in text
    assert (await pages.get("/history/jobs/none"))[0] == 404


@pytest.mark.asyncio(loop_scope="module")
async def test_a_csv_file_has_no_formulas(pages: PagesClient) -> None:
    found = {row["name"]: row for row in await rows(pages)}
    assert {"train", "old"} <= found.keys()
    assert found["old"]["message"] == f"'{ATTACK}"
    assert found["old"]["created_at"].endswith("+00:00")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_wrong_date_is_named_and_can_be_corrected(pages: PagesClient) -> None:
    status, text = await pages.get("/history?from=yesterday")
    assert (status, 'role="alert"' in text, 'name="from"' in text) == (200, True, True)
    assert (await pages.get("/history/jobs.csv?from=yesterday"))[0] == 422
    assert 'role="alert"' in (await pages.get("/history/usage?by=nonsense"))[1]


@pytest.mark.asyncio(loop_scope="module")
async def test_usage_is_shown_where_nothing_was_used(pages: PagesClient) -> None:
    status, text = await pages.get("/history/usage?by=user&step=1d&resource=memory")
    assert (status, "Nothing was used" in text) == (200, True)


@pytest.mark.asyncio(loop_scope="module")
async def test_usage_of_a_user_is_shown_by_queue_and_downloaded(pages: PagesClient) -> None:
    job = await pages.client.get(JOBS, "train", namespace="default", view=dict)
    owner = {"name": "train", "uid": job["metadata"]["uid"], "controller": True}
    owner |= {"apiVersion": JOBS.api_version, "kind": JOBS.kind}
    container = {**CONTAINER, "resources": {"requests": {"cpu": "2"}}}
    pod = {
        "metadata": {"name": "used", "ownerReferences": [owner]},
        "spec": {"containers": [container]},
    }
    await pages.client.create(PODS, pod, namespace="default")
    started = {"status": {"phase": "Running", "startTime": times.format(datetime.now(UTC))}}
    await pages.client.patch(PODS, "used", started, namespace="default", subresource="status")
    await wait_until_true(lambda: shows(pages, "/history/usage?by=namespace", ">default</a>"))
    status, text = await pages.get("/history/usage?by=namespace")
    (link,) = re.findall(r'<a href="(/history/usage[^"]*)">default</a>', text)
    assert (status, html.unescape(link)) == (
        200, "/history/usage?by=user&step=1h&namespace=default"
    )  # fmt: skip
    assert (await pages.get(html.unescape(link)))[0] == 200
    status, text = await pages.get("/history/usage.csv?by=namespace&step=1d")
    found = list(csv.DictReader(io.StringIO(text)))
    assert status == 200
    assert {row["namespace"] for row in found} == {"default"}
    assert {row["resource"] for row in found} == {"cpu"}
    assert all(datetime.fromisoformat(row["start"]).tzinfo for row in found)
    other = await pages.get("/history/usage.csv?by=namespace&namespace=other")
    assert other == (200, "start,namespace,resource,resource_seconds\r\n")
    assert (await pages.get("/history/usage.csv?by=nonsense"))[0] == 422


@pytest.mark.asyncio(loop_scope="module")
async def test_exit_codes_and_what_pods_have_used_are_columns(pages: PagesClient) -> None:
    job = {**JOB, "metadata": {"name": "exited"}}
    created = await pages.client.create(JOBS, job, namespace="default", view=dict)
    owner = {"name": "exited", "uid": created["metadata"]["uid"], "controller": True}
    owner |= {"apiVersion": JOBS.api_version, "kind": JOBS.kind}
    resources = {"requests": {"cpu": "2", "memory": "1Gi"}}
    started = datetime.now(UTC) - timedelta(minutes=1)
    for number, code in enumerate((0, 137, 137)):
        name = f"exited-{number}"
        pod = {
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": {"containers": [{**CONTAINER, "resources": resources}]},
        }
        await pages.client.create(PODS, pod, namespace="default")
        end = {"exitCode": code, "startedAt": times.format(started)}
        end["finishedAt"] = times.format(started + timedelta(seconds=30))
        container = {"name": "main", "image": "busybox", "imageID": "", "ready": False}
        container |= {"restartCount": 0, "state": {"terminated": end}}
        status = {"phase": "Failed" if code else "Succeeded", "startTime": end["startedAt"]}
        status["containerStatuses"] = [container]
        await pages.client.patch(
            PODS, name, {"status": status}, namespace="default", subresource="status"
        )
    ended = {"status": {"state": {"phase": "Failed"}}}
    await pages.client.patch(JOBS, "exited", ended, namespace="default", subresource="status")

    async def is_recorded() -> bool:
        found = await rows(pages, "name=exited")
        return bool(found) and found[0].get("resource_seconds.cpu") == "180.0"

    await wait_until_true(is_recorded)
    (row,) = await rows(pages, "name=exited")
    assert row["exit_code"] == "137"
    assert float(row["resource_seconds.memory"]) == 90 * 2**30
    _, text = await pages.get("/history?name=exited")
    table = text.partition("<tbody>")[2]
    assert re.findall(r"<td>(\d+)</td>", table) == ["137"]
    _, text = await pages.get(f"/history/jobs/{row['uid']}")
    fields = re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", text, re.DOTALL)
    shown = {re.sub("<.*?>", "", name): value.strip() for name, value in fields}
    assert (shown["Exit code 0"], shown["Exit code 137"]) == ("1 pod", "2 pods")
    assert (shown["cpu"], shown["memory"]) == ("180 seconds", "90 GiB seconds")


@pytest.mark.asyncio(loop_scope="module")
async def test_filters_of_the_history_lead_to_the_usage_of_the_same(pages: PagesClient) -> None:
    _, text = await pages.get("/history?queue=default&from=2026-01-01")
    (link,) = re.findall(r'<a href="(/history/usage[^"]*)">', text)
    assert html.unescape(link) == ("/history/usage?by=user&step=1d&queue=default&from=2026-01-01")
    _, text = await pages.get(html.unescape(link))
    assert 'name="queue" value="default"' in text
    assert 'name="from" value="2026-01-01"' in text


def usage(**amounts: list[float]) -> Usage:
    """CPU seconds of each series by hour."""
    hours = max(map(len, amounts.values()))
    return Usage(
        start=NOON,
        end=NOON + timedelta(hours=hours),
        step_seconds=3600,
        series=[
            UsageSeries(
                name=name,
                points=[
                    UsagePoint(start=NOON + timedelta(hours=at), resource_seconds={"cpu": value})
                    for at, value in enumerate(values)
                ],
            )
            for name, values in amounts.items()
        ],
    )


def test_columns_are_the_average_of_each_interval() -> None:
    chart = draw(usage(a=[3600, 7200], b=[0, 7200]), "cpu")
    assert chart.maximum == "4"
    assert chart.names == ["a", "b"]
    full = HEIGHT - 30
    assert [(each.series, each.height) for each in chart.columns] == [
        (0, full / 4),
        (0, full / 2),
        (1, full / 2),
    ]
    assert [each.x for each in chart.columns] == [LEFT, LEFT + 420, LEFT + 420]
    assert chart.columns[2].y == 10
    assert all(each.x + each.width <= WIDTH for each in chart.columns)


@pytest.mark.parametrize(
    ("value", "resource", "text"),
    [
        (96.6e9, "cpu", "96.6 G"),
        (0, "memory", "0"),
        (90 * 2**30, "memory", "90 GiB"),
        (1010 * 2**30, "memory", "1010 GiB"),
        (3.5 * 2**40, "hugepages-2Mi", "3.5 TiB"),
        (12 * 2**20, "ephemeral-storage", "12 MiB"),
        (100, "memory", "100 B"),
    ],
)
def test_amounts_in_bytes_have_units(value: float, resource: str, text: str) -> None:
    assert amount(value, resource) == text


def test_series_that_have_used_least_are_added_up() -> None:
    amounts = {f"s{number}": [3600.0 * number] for number in range(1, 10)}
    chart = draw(usage(**amounts), "cpu")
    assert chart.names == ["s9", "s8", "s7", "s6", "s5", "s4", OTHERS]
    assert chart.columns[-1].title.startswith("others: 6 ")


def test_a_resource_that_was_not_used_has_an_empty_chart() -> None:
    chart = draw(usage(a=[3600]), "memory")
    assert (list(chart.columns), list(chart.names)) == ([], [])
    assert list(draw(Usage(), "cpu").columns) == []


@pytest.mark.asyncio(loop_scope="module")
async def test_a_deleted_job_runs_again(pages: PagesClient) -> None:
    (row,) = await rows(pages, "name=old")
    page = f"/history/jobs/{row['uid']}"
    assert f'hx-post="{page}/rerun"' in (await pages.get(page))[1]
    status, text = await pages.post(f"{page}/rerun", {})
    assert status == 200
    assert "without annotations" in text
    match = re.search(r'href="/jobs/default/jobs/(old-\d{9})"', text)
    assert match is not None
    again = await pages.client.get(JOBS, match[1], namespace="default", view=dict)
    assert again["spec"]["tasks"][0]["name"] == "t"
    await pages.client.delete(JOBS, match[1], namespace="default")
    assert (await pages.post("/history/jobs/missing/rerun", {}))[0] == 404
