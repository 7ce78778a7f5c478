"""The page of the queues."""

import html
import re

import pytest
from support.pages import PagesClient
from support.polling import wait_until_true

from batholith.api.pages.queues import tree
from batholith.model.names import BUDGET, BUDGET_WINDOW, PODGROUPS, QUEUES
from batholith.wire.queues import Queue


def paths(*queues: tuple[str, str]) -> list[tuple[str, int]]:
    found = tree([Queue(name=name, parent=parent) for name, parent in queues])
    return [(queue.name, depth) for queue, depth in found]


def test_queues_follow_their_parents() -> None:
    queues = (("b", "root"), ("a2", "a"), ("root", ""), ("a", "root"), ("a1", "a"))
    assert paths(*queues) == [("root", 0), ("a", 1), ("a1", 2), ("a2", 2), ("b", 1)]


def test_queues_without_an_existing_parent_are_at_the_top() -> None:
    assert paths(("b", "missing"), ("a", "")) == [("a", 0), ("b", 0)]


def test_queues_that_are_parents_of_each_other_are_shown_once() -> None:
    assert paths(("a", "b"), ("b", "a"), ("c", "c")) == [("a", 0), ("b", 1), ("c", 0)]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_queue_is_shown_with_its_bars_and_waiting_gangs(pages: PagesClient) -> None:
    spec = {
        "parent": "root",
        "capability": {"cpu": "8"},
        "deserved": {"cpu": "4"},
        "guarantee": {"resource": {"cpu": "500m"}},
    }
    await pages.client.create(QUEUES, {"metadata": {"name": "vision"}, "spec": spec})
    status = {"status": {"allocated": {"cpu": "2"}, "state": "Open"}}
    await pages.client.patch(QUEUES, "vision", status, subresource="status")
    gang = {"metadata": {"name": "gang"}, "spec": {"minMember": 1, "queue": "vision"}}
    await pages.client.create(PODGROUPS, gang, namespace="default")

    async def is_shown() -> bool:
        _, text = await pages.get("/queues")
        return "used 2, guaranteed 500m, deserved 4, limit 8" in text and "phase=Pending" in text

    await wait_until_true(is_shown)
    _, text = await pages.get("/queues", fragment=True)
    bar = text[text.index("cpu of vision") :]
    assert re.search(r'class="used" x="1" y="3" width="45.0"', bar)
    positions = re.findall(r'class="mark \w+" x1="([\d.]+)"', bar[: bar.index("</svg>")])
    assert positions == ["12.2", "91.0", "181.0"]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_queue_without_recorded_usage_shows_neither_that_nor_its_budget(
    pages: PagesClient,
) -> None:
    annotations = {BUDGET: "cpu=1000", BUDGET_WINDOW: "168h"}
    body = {"metadata": {"name": "speech", "annotations": annotations}, "spec": {"weight": 1}}
    await pages.client.create(QUEUES, body)
    status, text = await pages.get("/queues/speech")
    assert (status, "records no usage" in text, 'id="budget"' in text) == (200, True, False)
    (chart,) = re.findall(r'href="(/history/usage[^"]*)"', text)
    assert html.unescape(chart) == "/history/usage?by=user&step=1d&queue=speech"
    assert (await pages.get(html.unescape(chart)))[0] == 200
    assert (await pages.get("/queues/missing"))[0] == 404
