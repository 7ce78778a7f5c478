"""As test_conformance.py: conversations of requests that are rejected, and what is stored."""

from pathlib import Path
from typing import Any

import pytest
from support.api_servers import RealServerFactory
from support.conversations import Conversation, RecordedConversation, assert_same_responses
from support.embedded_apiserver import Server, embedded_server
from support.polling import wait_until_true

from batholith.model import crds
from batholith.model.names import API_SERVICES

Json = dict[str, Any]

EXPECTED_DIFFERENCES: dict[str, dict[str, str]] = {}
CONVERSATIONS: dict[str, Conversation] = {}


def register_conversation(conversation: Conversation) -> Conversation:
    CONVERSATIONS[conversation.__name__] = conversation
    return conversation


_SERVED_BY = {"namespace": "default", "name": "s"}


@register_conversation
async def api_services(send: RecordedConversation) -> None:
    priorities = {"groupPriorityMinimum": 1, "versionPriority": 1}
    specs: tuple[tuple[str, Json], ...] = (
        ("v1.a.b", {"group": "a.b", "version": "v2"}),
        ("v2.", {"version": "v2"}),
        ("V.A_b", {"group": "A_b", "version": "V"}),
        ("v1.a.b", {"groupPriorityMinimum": 0}),
        ("v1.a.b", {"groupPriorityMinimum": 20001}),
        ("v1.a.b", {"versionPriority": 1001}),
        ("v1.a.b", {"caBundle": "YWJj"}),
        ("v1.a.b", {"insecureSkipTLSVerify": True}),
        ("v1.a.b", {"service": {}}),
        ("v1.a.b", {"service": _SERVED_BY | {"port": 70000}}),
        (
            "v1.a.b",
            {"service": _SERVED_BY, "caBundle": "YWJj", "insecureSkipTLSVerify": True},
        ),
        ("v1.a.b", {"service": _SERVED_BY, "caBundle": "YWJj"}),
        ("v1.a.b", {}),
    )
    path = f"{API_SERVICES.path()}?dryRun=All"
    for name, spec in specs:
        named = {} if spec.keys() & {"group", "version"} else {"group": "a.b", "version": "v1"}
        body = {"metadata": {"name": name}, "spec": {**priorities, **named, **spec}}
        await send("POST", path, body)
    await send("POST", path, {"metadata": {"name": "v1.a.b"}})


async def test_both_servers_have_the_same_apis(real: RealServerFactory, tmp_path: Path) -> None:
    async def listed(server: Server) -> dict[str, Json]:
        found = (await server.get(API_SERVICES.path()))["items"]
        return {each["metadata"]["name"]: _without_times(each) for each in found}

    async with real.start(tmp_path) as one, embedded_server(tmp_path, crds=crds.load()) as other:
        theirs = await listed(one)

        async def has_all() -> bool:
            return not {each for each in theirs if "volcano" in each} - (await listed(other)).keys()

        await wait_until_true(has_all)
        ours = await listed(other)
    assert ours.keys() - theirs.keys() == {"v1beta1.metrics.k8s.io"}
    common = theirs.keys() & ours.keys()
    assert {name: ours[name] for name in common} == {name: theirs[name] for name in common}


def _without_times(obj: Json) -> Json:
    conditions = [
        {key: value for key, value in each.items() if key != "lastTransitionTime"}
        for each in obj["status"]["conditions"]
    ]
    return {"labels": obj["metadata"]["labels"], "spec": obj["spec"], "conditions": conditions}


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS)
async def test_both_servers_return_the_same(
    conversation: Conversation, real: RealServerFactory, tmp_path: Path
) -> None:
    known = EXPECTED_DIFFERENCES.get(conversation.__name__, {})
    await assert_same_responses(conversation, real, tmp_path, known)
