"""Conversations: series of requests to which two API servers send the same responses.

Wording, times, versions, uids and `managedFields` may differ.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import RealServerFactory
from support.embedded_apiserver import RawResponse, Server, embedded_server
from support.polling import wait_until_true
from support.response_comparison import ResponseComparison

from batholith.model import crds

Json = dict[str, Any]


class RecordedConversation:
    """Sends requests to one server and records the responses."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.responses: list[tuple[str, RawResponse]] = []

    async def __call__(
        self, method: str, path: str, body: object = None, kind: str = "application/json"
    ) -> Any:
        """Send a request; return the body of the response."""
        response = await self.server.request(method, path, body, content_type=kind)
        self.responses.append((f"{method} {path} {body}"[:300], response))
        return response.body

    async def wait_status(self, status: int, *request: Any) -> None:
        """Wait, without recording it, until a request gets *status*."""

        async def has_status() -> bool:
            return (await self.server.request(*request)).status == status

        await wait_until_true(has_status)

    async def record_watches(
        self, paths: Sequence[str], write: Callable[[], Awaitable[Any]]
    ) -> None:
        """Record what watches of *paths* send up to the object that *write* writes."""
        async with AsyncExitStack() as stack:
            watching = [await stack.enter_async_context(self.server.watch(path)) for path in paths]
            last = (await write())["metadata"]["resourceVersion"]
            for path, lines in zip(paths, watching, strict=True):
                events = [await lines.next()]
                while _is_bookmark(events[-1]) or _version(events[-1]) != last:
                    events.append(await lines.next())
                self.responses.append((f"GET {path}", RawResponse(lines.status, events)))


Conversation = Callable[[RecordedConversation], Awaitable[None]]


class Conversations:
    """The conversations of a test module."""

    def __init__(self, known: Mapping[str, Mapping[str, str]]) -> None:
        """*known*: by conversation, substrings of accepted differences and why."""
        self._known = known
        self._conversations: list[Conversation] = []

    def register(self, conversation: Conversation) -> Conversation:
        """Add a conversation, as a decorator."""
        self._conversations.append(conversation)
        return conversation

    def test(self) -> Callable[..., Awaitable[None]]:
        """Return the test that holds each of them with both servers."""

        @pytest.mark.parametrize(
            "conversation", self._conversations, ids=[each.__name__ for each in self._conversations]
        )
        async def test_both_servers_return_the_same(
            conversation: Conversation, real: RealServerFactory, tmp_path: Path
        ) -> None:
            known = self._known.get(conversation.__name__, {})
            await assert_same_responses(conversation, real, tmp_path, known)

        return test_both_servers_return_the_same


async def assert_same_responses(
    conversation: Conversation,
    real: RealServerFactory,
    directory: Path,
    known: Mapping[str, str],
) -> None:
    """Hold *conversation* with both servers.

    *known*: substrings of the only differences, which must exist, and their reasons.
    """
    async with real.start(directory) as one, embedded_server(directory, crds=crds.load()) as other:
        theirs, ours = RecordedConversation(one), RecordedConversation(other)
        await asyncio.gather(conversation(theirs), conversation(ours))
    comparison = ResponseComparison()
    found = []
    for (request, wanted), (_, got) in zip(theirs.responses, ours.responses, strict=True):
        differs = (
            comparison.differences(normalised(wanted.body), normalised(got.body))
            if wanted.status == got.status
            else [f"status {got.status} instead of {wanted.status}: {got.body} {wanted.body}"]
        )
        warnings = [each for each in got.warnings if "the embedded cluster" not in each]
        if sorted(warnings) != sorted(wanted.warnings):
            differs.append(f"warnings are {warnings} instead of {wanted.warnings}")
        found += [f"{request}: {each}" for each in differs]
    unexpected = [each for each in found if not any(difference in each for difference in known)]
    assert not unexpected, "\n".join(unexpected)
    assert [
        difference for difference in known if not any(difference in each for each in found)
    ] == []


def normalised(value: Any) -> Any:
    """*value* without fields that may differ.

    These are managed fields, objects that the server creates, bookmarks without content, kinds of
    list items, and the order of kinds.
    """
    if isinstance(value, list):
        return [normalised(each) for each in value if not _is_noise(each)]
    if not isinstance(value, dict):
        return value
    kept = {key: normalised(each) for key, each in value.items() if key != "managedFields"}
    if isinstance(items := kept.get("items"), list):
        kept["items"] = [
            {key: each for key, each in item.items() if key not in ("kind", "apiVersion")}
            for item in items
        ]
    if kept.get("kind") == "APIResourceList":
        kept["resources"].sort(key=lambda each: str(each["name"]))
    return kept


def _is_noise(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    metadata = (value.get("object") or value).get("metadata") or {}
    if _is_bookmark(value):
        return "annotations" not in metadata
    return metadata.get("name") == "kube-root-ca.crt"


def _is_bookmark(value: Json) -> bool:
    return bool(value.get("type") == "BOOKMARK")


def _version(event: Json) -> str:
    version: str = event["object"]["metadata"]["resourceVersion"]
    return version
