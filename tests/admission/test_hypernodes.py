"""Validation of HyperNodes: members, selectors, patterns, cycles."""

from pathlib import Path
from typing import Any

import pytest
from support.admission import ObjectReaderStub, admit, denial, hypernode, member, queue, task
from support.api_servers import ServerFactory
from support.embedded_apiserver import MERGE, Server
from support.polling import wait_until_true

from batholith.admission import WEBHOOKS
from batholith.model import crds
from batholith.model.admission import AdmissionRequest
from batholith.model.names import HYPERNODES, JOBS, QUEUES

Json = dict[str, Any]


def warnings(obj: Json, *stored: Json) -> list[str]:
    (hook,) = (each for each in WEBHOOKS if each.resource == HYPERNODES)
    request = AdmissionRequest(
        operation="CREATE",
        namespace="",
        name=obj["metadata"]["name"],
        object=obj,
        old_object=None,
    )
    assert hook.warn is not None
    return hook.warn(request, ObjectReaderStub(*stored))


@pytest.mark.parametrize(
    "members",
    [
        [member("node-0"), member(regexMatch={"pattern": "node-[01]"})],
        [member(labelMatch={"matchLabels": {"rack": "r1"}})],
        [member("lower", of="HyperNode"), member("not-yet-there", of="HyperNode")],
    ],
)
def test_a_hypernode_of_nodes_and_hypernodes_is_valid(members: list[Json]) -> None:
    obj = hypernode("h", *members, tier=2)
    lower = hypernode("lower", member("node-2"))
    assert admit(obj, ObjectReaderStub(lower)) == obj
    assert warnings(obj, lower) == []


def test_all_errors_are_reported_with_their_paths() -> None:
    text = denial(
        hypernode(
            "h",
            member(regexMatch={"pattern": "a("}),
            member(labelMatch={"matchExpressions": [{"key": "rack", "operator": "Near"}]}),
            member(regexMatch={"pattern": "a"}, exactMatch={"name": "a"}),
        )
    )
    for expected in (
        "spec.members[0].selector.regexMatch.pattern: member regexMatch pattern is invalid: ",
        'spec.members[1].selector.labelMatch: "Near" is not a valid label selector operator',
        "spec.members[2].selector: Only one of ExactMatch, RegexMatch, or LabelMatch",
    ):
        assert expected in text


def test_a_pattern_that_needs_exponential_time_elsewhere_is_valid_and_matched_in_linear_time() -> (
    None
):
    stored = hypernode("a" * 63 + "b", member("node-0"))
    obj = hypernode("h", member(of="HyperNode", regexMatch={"pattern": "(a+)+$"}), tier=2)
    admit(obj, ObjectReaderStub(stored))


@pytest.mark.parametrize(
    "selector", [{"exactMatch": {"name": "h"}}, {"regexMatch": {"pattern": "^h$"}}]
)
def test_a_hypernode_does_not_contain_itself(selector: Json) -> None:
    text = denial(hypernode("h", member(of="HyperNode", **selector)))
    assert text == "spec.members[0]: HyperNodes must not contain each other: h -> h"


def test_hypernodes_do_not_contain_each_other() -> None:
    stored = ObjectReaderStub(
        hypernode("a", member("b", of="HyperNode"), tier=2),
        hypernode("b", member(of="HyperNode", regexMatch={"pattern": "^c"}), tier=3),
    )
    text = denial(hypernode("c", member("node-0"), member("a", of="HyperNode"), tier=4), stored)
    assert text == "spec.members[1]: HyperNodes must not contain each other: c -> a -> b -> c"


def test_an_update_that_removes_the_cycle_is_valid() -> None:
    stored = ObjectReaderStub(
        hypernode("a", member("b", of="HyperNode"), tier=2),
        hypernode("b", member("a", of="HyperNode"), tier=3),
    )
    old = hypernode("b", member("a", of="HyperNode"), tier=3)
    admit(hypernode("b", member("node-0"), tier=3), stored, old=old)


def test_labels_of_a_hypernode_that_was_stored_without_validation_may_change() -> None:
    old = hypernode("h")
    changed = {**old, "metadata": {"name": "h", "labels": {"a": "b"}}}
    admit(changed, old=old)
    assert "must have at least one member" in denial(hypernode("h", tier=2), old=old)


def test_members_without_effect_cause_warnings() -> None:
    above = hypernode("above", member("node-0"), tier=2)
    found = warnings(
        hypernode(
            "h",
            {"type": "Node"},
            member(of="HyperNode", labelMatch={"matchLabels": {"a": "b"}}),
            member("above", of="HyperNode"),
            tier=2,
        ),
        above,
    )
    assert found == [
        "spec.members[0] selects nothing: it has no selector",
        "spec.members[1] selects nothing: labelMatch selects nodes only",
        "spec.members[2] has no effect for HyperNode 'above': its tier 2 is not below 2",
    ]


async def test_servers_compare_a_hypernode_with_the_others(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """Webhooks have no informer of HyperNodes, and read them at each review."""
    async with servers.start(tmp_path, crds=crds.load(), webhooks=WEBHOOKS) as server:
        job = {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "metadata": {"name": "j"},
            "spec": {"tasks": [task("t")], "networkTopology": {"mode": "hard"}},
        }
        await server.create(QUEUES.path(), {**queue("default"), "spec": {"weight": 1}})
        path = QUEUES.path(name="default", subresource="status")
        opened = {"status": {"state": "Open"}}
        await server.request("PATCH", path, opened, content_type=MERGE)
        at = f"{JOBS.path('default')}?dryRun=All"

        async def is_accepted() -> bool:
            return (await server.request("POST", at, job)).status == 201

        await wait_until_true(is_accepted)
        assert "as long as there are no HyperNodes" in str(await _warnings(server, at, job))
        await server.create(HYPERNODES.path(), hypernode("a", member("b", of="HyperNode"), tier=1))
        assert await _warnings(server, at, job) == []
        cycle = hypernode("b", member("a", of="HyperNode"), tier=2)
        response = await server.request("POST", HYPERNODES.path(), cycle)
        assert "HyperNodes must not contain each other: b -> a -> b" in response.body["message"]


async def _warnings(server: Server, path: str, body: Json) -> list[str]:
    response = await server.request("POST", path, body)
    assert response.status == 201, response.body
    return list(response.warnings)
