"""Recorded responses of a real Kubernetes API server, compared to ours request by request.

The recording is replayed in order on an empty store. Its versions and uids are translated into
ours when they first appear; times, field order and wording are ignored.
"""

import asyncio
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from support.embedded_apiserver import EmbeddedServer, embedded_server
from support.response_comparison import ResponseComparison

from batholith.local.apiserver.storage import object_store

RECORDING = Path(__file__).parents[1] / "data" / "crd-wire.jsonl"
Json = dict[str, Any]

REPLICAS = "the wrong type of replicas is named once, not by the scale sub-resource again"
NOT_SENT = {
    **dict.fromkeys((247, 248, 249), "the recorded server took its time over a deletion"),
    175: "its concurrent writes cannot be separated from the initial state",
}
"""Recorded requests that are skipped, and why: their effects would change later responses."""

EVENTUALLY_CONSISTENT = frozenset((1, 225, 228, 250, 251))
"""Recorded requests that read what a controller of the server does, or that need it."""

NOT_YET = {
    4: "the version is our own",
    5: "the checks are our own",
    6: "we serve a kind when its objects are loaded, never before",
    26: "a body of another version is rejected before its fields are decoded",
    27: "a body of another kind is reported under the name of the kind of its address",
    43: "a refusal is never written in protobuf",
    109: REPLICAS,
    187: "a watch from a version of the future is expired, as after a restored backup",
    239: REPLICAS,
    242: REPLICAS,
}
"""Recorded requests with a different response, and why."""


class Replay:
    """Sends recorded requests and compares the responses."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._comparison = ResponseComparison()

    async def run(self, entry: Json) -> list[str]:
        """Replay one request; return the differences."""
        found = await self._run(entry)
        async with asyncio.timeout(100):
            while found and entry["n"] in EVENTUALLY_CONSISTENT:
                await asyncio.sleep(0.01)
                found = await self._run(entry)
        return found

    async def _run(self, entry: Json) -> list[str]:
        headers = {"Accept": entry["accept"]} if entry.get("accept") else {}
        if "events" in entry and "timeoutSeconds" not in entry["path"]:
            entry["path"] += "&timeoutSeconds=1"
        body = entry.get("body")
        response = await self._server.request(
            entry["method"],
            self._translated(entry["path"]),
            None if body is None else self._translated(body).encode(),
            content_type=entry.get("contentType") or "application/json",
            headers=headers,
        )
        if response.status != entry["status"]:
            return [f"status {response.status} instead of {entry['status']}: {response.body}"]
        if "events" in entry:
            return self._compare_events(entry, response.body)
        found: list[str] = []
        wanted_warning = (entry.get("headers") or {}).get("Warning")
        if wanted_warning and "Warning" not in response.headers:
            found.append(f"no warning {wanted_warning}")
        if entry.get("response") is not None:
            found += self._comparison.differences(_read(entry["response"]), _read(response.body))
        return found

    def _translated(self, text: str) -> str:
        for theirs, ours in self._comparison.uids.items():
            text = text.replace(theirs, ours)
        text = re.sub(
            r'("?resourceVersion"?(?:": ?"|=))(\d+)',
            lambda m: m[1] + self._comparison.versions.get(m[2], m[2]),
            text,
        )
        text = re.sub(r"(?<=continue=)[\w-]+", lambda m: self._translated_token(m[0]), text)
        return re.sub(r"timeoutSeconds=\d+", "timeoutSeconds=1", text)

    def _translated_token(self, token: str) -> str:
        """A token of the recorded server, with the version that ours had then."""
        try:
            content = json.loads(urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        except ValueError:
            return token  # recorded as malformed
        version = str(content.get("rv"))
        content["rv"] = int(self._comparison.versions.get(version, version))
        return urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    def _compare_events(self, entry: Json, body: Any) -> list[str]:
        if entry["status"] != 200:
            return []
        ours = body if isinstance(body, list) else [body] if body else []
        theirs = [event for event in entry["events"] if not _is_bookmark(event)]
        ours = [
            {**event, "object": _without_prose(event["object"])} if "object" in event else event
            for event in ours
            if not _is_bookmark(event)
        ]
        return self._comparison.differences(theirs, ours)


def _read(body: Any) -> Any:
    """Decode a response in YAML, and leave out the prose of columns, which was not recorded."""
    if not isinstance(body, str) or not body.startswith("apiVersion:"):
        return _without_prose(body)
    return msgspec.json.decode(msgspec.json.encode(yaml.safe_load(body)))


def _without_prose(obj: Any) -> Any:
    if not isinstance(obj, dict) or not obj.get("columnDefinitions"):
        return obj
    columns = [{**each, "description": ""} for each in obj["columnDefinitions"]]
    return {**obj, "columnDefinitions": columns}


def _is_bookmark(event: Json) -> bool:
    """Whether an event is a bookmark without content, whose timing may differ."""
    metadata = (event.get("object") or {}).get("metadata") or {}
    return event.get("type") == "BOOKMARK" and "annotations" not in metadata


def _parallel_groups(entries: list[Json]) -> list[list[Json]]:
    """Yield runs of consecutive watches without writes: they can run concurrently."""
    groups: list[list[Json]] = []
    for entry in entries:
        if groups and "events" in entry and "events" in groups[-1][-1]:
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return groups


async def test_recorded_requests_get_the_recorded_responses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "FRESHNESS_TIMEOUT", 0.05)
    recorded = [msgspec.json.decode(line) for line in RECORDING.read_bytes().splitlines()]
    entries = [entry for entry in recorded if entry["n"] not in NOT_SENT]
    differ: dict[int, list[str]] = {}
    async with embedded_server(tmp_path, collect_garbage=False) as server:
        replay = Replay(server)
        for group in _parallel_groups(entries):
            for entry, found in zip(
                group, await asyncio.gather(*map(replay.run, group)), strict=True
            ):
                if found:
                    differ[entry["n"]] = found
    unexpected = {n: found for n, found in differ.items() if n not in NOT_YET}
    assert unexpected == {}
    assert [n for n in NOT_YET if n not in differ] == [], "these are served by now"
