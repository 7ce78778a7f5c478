"""Gangs of other kinds, with the pods as the controllers of these kinds create them, and the
scheduler.

The file has what the controller of each kind has created from an object: recorded, without fields
that neither the PodGroup nor the scheduler depends on.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from support.controller_api import NAMESPACE, ControllerApi
from support.foreign_kinds import definition
from support.polling import wait_for
from support.running_controller import FakeRecorder, running

from batholith.model.names import NODES, PODGROUPS, PODS, QUEUES
from batholith.podgroup_ctrl.controller import PodGroupController, PodGroupSettings
from batholith.podgroup_ctrl.groupers.registry import GROUPERS
from batholith.scheduler.scheduler import Scheduler

Json = dict[str, Any]
FILE = Path(__file__).parents[1] / "data" / "gangs-of-other-kinds.jsonl"
RECORDED = [json.loads(line) for line in FILE.read_text().splitlines()]
RESOURCES = {each.resource.kind: each.resource for each in GROUPERS.values() if each.resource}


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda each: str(each["name"]))
async def test_the_pods_of_an_object_are_one_gang_that_is_scheduled_together(
    recorded: Json,
) -> None:
    owner, pods = recorded["owner"], recorded["pods"]
    resource = RESOURCES[owner["kind"]]
    recorder = FakeRecorder()

    async with (
        ControllerApi(PODGROUPS, QUEUES, definitions=[definition(resource)]) as api,
        api.client() as client,
    ):

        def bound() -> int:
            return sum("nodeName" in each["spec"] for each in api.objects(PODS).values())

        def waits() -> bool:
            """Whether the scheduler has considered the gang, and reported that it waits."""
            groups = api.objects(PODGROUPS).values()
            return any(each.get("status", {}).get("conditions") for each in groups)

        async def add(pod: Json) -> None:
            await client.create(PODS, {"apiVersion": "v1", "kind": "Pod", **pod}, namespace="d")

        amounts = {"cpu": "8", "memory": "16Gi", "pods": "110"}
        status = {"capacity": amounts, "allocatable": amounts}
        api.put(NODES, "node", namespace="", status=status)
        api.put(QUEUES, "default", namespace="", spec={"weight": 1}, status={"state": "Open"})
        api.put(resource, owner["metadata"]["name"], metadata=owner["metadata"], spec=owner["spec"])
        settings = PodGroupSettings(groupers=tuple(GROUPERS))
        controller = PodGroupController(client, settings=settings, recorder=recorder)
        async with running(controller), running(Scheduler(client)):
            *others, last = pods
            for pod in others:
                await add(pod)
            await wait_for(waits)
            assert bound() == 0
            await add(last)
            await wait_for(lambda: bound() == len(pods))
        (group,) = api.objects(PODGROUPS).items()
    assert group[0] == f"{NAMESPACE}/{recorded['podgroup']}"
    assert group[1]["spec"]["minMember"] == len(pods)
    assert recorder.events == []
