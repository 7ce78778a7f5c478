"""Writes of batch Jobs and CronJobs: the embedded server answers like kube-apiserver."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.api_servers import EmbeddedServerFactory, RealServerFactory
from support.batch_writes import (
    CRON_JOB_WRITES,
    JOB_CREATIONS,
    JOB_STATUS_WRITES,
    JOB_UPDATES,
    Write,
)
from support.embedded_apiserver import MERGE, RawResponse, Server

Json = dict[str, Any]

_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_POD_TEMPLATE = re.compile(r"(?<=Invalid value: )\{.*\}(?=: field is immutable)", re.DOTALL)
_ONLY_HERE = " has no effect in the embedded cluster: "
_KEPT_APART = ("creationTimestamp", "managedFields", "resourceVersion", "uid")


class Answer(NamedTuple):
    """What a server answers to a write, without what differs between any two servers."""

    status: int
    body: Any
    warnings: list[str]


def _normalized(text: str) -> str:
    return _UID.sub("UID", text)


def _without_template(cause: Json) -> Json:
    """Leave out the value of a changed pod template.

    kube-apiserver writes it in the form of its own internal types; no client can use that.
    """
    if not cause["field"].startswith("spec.template"):
        return cause
    return {**cause, "message": _POD_TEMPLATE.sub("…", cause["message"])}


def _answer(response: RawResponse) -> Answer:
    # The embedded server also warns of fields on which no component of its cluster acts.
    warnings = [text for text in response.warnings if _ONLY_HERE not in text]
    body = response.body
    if response.status < 400:
        metadata = {
            key: value for key, value in body["metadata"].items() if key not in _KEPT_APART
        }
        body = {**body, "metadata": metadata}
    else:
        causes = [_without_template(cause) for cause in body["details"].get("causes", ())]
        body = {**body, "message": body["message"], "details": {**body["details"]}}
        # kube-apiserver reports each error in the metadata of an update two or three times.
        own = [cause for cause in causes if cause["field"].startswith("metadata.")]
        body["details"]["causes"] = [
            *{_normalized(str(cause)): cause for cause in own}.values(),
            *(cause for cause in causes if cause not in own),
        ]
        if body["reason"] == "Invalid":
            body["message"] = _POD_TEMPLATE.sub("…", body["message"])
    return Answer(response.status, _deep_normalized(body), list(map(_normalized, warnings)))


def _deep_normalized(value: Any) -> Any:
    if isinstance(value, dict):
        return {_normalized(key): _deep_normalized(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_deep_normalized(each) for each in value]
    return _normalized(value) if isinstance(value, str) else value


async def _write(server: Server, name: str, write: Write) -> Answer:
    """Send a write, and what must be there before it."""
    created = await server.request(
        "POST", write.resource.path("default"), write.body(name)
    )
    if write.change is None:
        return _answer(created)
    assert created.status == 201, (name, created.body)
    path = write.resource.path("default", name)
    if write.status is not None:
        before = {"status": write.status}
        response = await server.request("PATCH", f"{path}/status", before, content_type=MERGE)
        assert response.status == 200, (name, response.body)
    if write.subresource:
        path = f"{path}/{write.subresource}"
    return _answer(
        await server.request("PATCH", path, write.change, content_type=write.content_type)
    )


async def _answers(server: Server, writes: Mapping[str, Write]) -> dict[str, Answer]:
    return {name: await _write(server, name, write) for name, write in writes.items()}


CLOSES_THE_CONNECTION = "success-policy-without-completions"
"""kube-apiserver panics, and closes the connection; the embedded server rejects the Job."""


@pytest.mark.parametrize(
    "writes",
    [JOB_CREATIONS, JOB_UPDATES, JOB_STATUS_WRITES, CRON_JOB_WRITES],
    ids=["creations", "updates", "statuses", "cron-jobs"],
)
async def test_both_servers_answer_alike(
    real: RealServerFactory, tmp_path: Path, writes: Mapping[str, Write]
) -> None:
    async with (
        real.start(tmp_path / "real") as theirs,
        EmbeddedServerFactory().start(tmp_path / "embedded") as ours,
    ):
        expected, actual = await asyncio.gather(
            _answers(theirs, writes), _answers(ours, writes)
        )
    different = {name: (expected[name], actual[name]) for name in writes if expected[name] != actual[name]}
    assert different == {}
