"""Requests for batch Jobs and CronJobs: the embedded server responds like kube-apiserver."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest
from support.api_servers import EmbeddedServerFactory, RealServerFactory
from support.batch_writes import (
    COMPLETE,
    CRON_JOB_WRITES,
    JOB_CREATIONS,
    JOB_STATUS_WRITES,
    JOB_UPDATES,
    POD,
    STARTED,
    SUSPENDED,
    Write,
    cron,
    indexed,
    job,
    success,
)
from support.embedded_apiserver import MERGE, RawResponse, Server

from batholith.model.names import BATCH_CRONJOBS, BATCH_JOBS

Json = dict[str, Any]

JOBS, CRONS = BATCH_JOBS.path("default"), BATCH_CRONJOBS.path("default")
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}

INTENDED = {
    "cron-zone-without-fields": (
        "invalid schedule format: runtime error: slice bounds out of range [:-1]",
        "no schedule after the time zone",
    ),
    "failure-policy-empty": ('{"rules":null}', '{"rules":[]}'),
}
"""By name: text in the response of kube-apiserver, and ours instead.

Its parser of schedules panics, which it reports; and it keeps no empty list that was sent.
"""

_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_POD_TEMPLATE = re.compile(r"(?<=Invalid value: )\{.*\}(?=: field is immutable)", re.DOTALL)
_ONLY_HERE = " in the embedded cluster: "
_KEPT_APART = ("creationTimestamp", "managedFields", "resourceVersion", "uid")


class Outcome(NamedTuple):
    """Response to a write, without what differs between any two servers."""

    status: int
    body: Any
    warnings: list[str]


def _normalized(text: str) -> str:
    return _UID.sub("UID", text)


def _without_template(cause: Json) -> Json:
    """Leave out the value of a changed pod template.

    kube-apiserver writes it in the form of its internal types; no client can use that.
    """
    if not cause["field"].startswith("spec.template"):
        return cause
    return {**cause, "message": _POD_TEMPLATE.sub("…", cause["message"])}


def _outcome(response: RawResponse) -> Outcome:
    # The embedded server also warns of fields on which no component of its cluster acts.
    warnings = [text for text in response.warnings if _ONLY_HERE not in text]
    body = response.body
    if response.status < 400:
        metadata = {key: value for key, value in body["metadata"].items() if key not in _KEPT_APART}
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
    return Outcome(response.status, _map_texts(body, _normalized), list(map(_normalized, warnings)))


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {key: _map_texts(each, change) for key, each in value.items()}
    if isinstance(value, list):
        return [_map_texts(each, change) for each in value]
    return change(value) if isinstance(value, str) else value


async def _write(server: Server, name: str, write: Write) -> Outcome:
    """Send a write, and what must be there before it."""
    created = await server.request("POST", write.resource.path("default"), write.body(name))
    if write.change is None:
        return _outcome(created)
    assert created.status == 201, (name, created.body)
    path = write.resource.path("default", name)
    if write.status is not None:
        before = {"status": write.status}
        response = await server.request("PATCH", f"{path}/status", before, content_type=MERGE)
        assert response.status == 200, (name, response.body)
    if write.subresource:
        path = f"{path}/{write.subresource}"
    return _outcome(
        await server.request("PATCH", path, write.change, content_type=write.content_type)
    )


async def _outcomes(server: Server, writes: Mapping[str, Write]) -> dict[str, Outcome]:
    return {name: await _write(server, name, write) for name, write in writes.items()}


def _expected(name: str, outcome: Outcome) -> Outcome:
    """Return the response of the embedded server for that of kube-apiserver."""
    if name not in INTENDED:
        return outcome
    theirs, ours = INTENDED[name]
    text = msgspec.json.encode(outcome.body).decode()
    assert theirs in text
    return outcome._replace(body=msgspec.json.decode(text.replace(theirs, ours)))


@asynccontextmanager
async def _both(real: RealServerFactory, directory: Path) -> AsyncIterator[tuple[Server, Server]]:
    async with (
        real.start(directory / "real") as theirs,
        EmbeddedServerFactory().start(directory / "embedded") as ours,
    ):
        yield theirs, ours


@pytest.mark.parametrize(
    "writes",
    [JOB_CREATIONS, JOB_UPDATES, JOB_STATUS_WRITES, CRON_JOB_WRITES],
    ids=["creations", "updates", "statuses", "cron-jobs"],
)
async def test_both_servers_respond_alike(
    real: RealServerFactory, tmp_path: Path, writes: Mapping[str, Write]
) -> None:
    async with _both(real, tmp_path) as (theirs, ours):
        expected, actual = await asyncio.gather(_outcomes(theirs, writes), _outcomes(ours, writes))
    expected = {name: _expected(name, outcome) for name, outcome in expected.items()}
    assert {
        name: (expected[name], actual[name]) for name in writes if expected[name] != actual[name]
    } == {}


async def test_a_success_policy_without_completions_is_rejected(
    real: RealServerFactory, tmp_path: Path
) -> None:
    """kube-apiserver panics, and closes the connection."""
    spec = success({"succeededCount": 1}, completions=None)
    body = Write(spec=spec).body("endless")
    async with _both(real, tmp_path) as (theirs, ours):
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await theirs.request("POST", JOBS, body)
        response = await ours.request("POST", JOBS, body)
    assert response.body["message"] == (
        'Job.batch "endless" is invalid: spec.completions: Required value: when completion mode '
        "is Indexed"
    )


Conversation = Callable[[Server], Awaitable[list[Any]]]


async def _replacements(server: Server) -> list[Any]:
    """PUT of whole objects, also of the manifest from which one was created."""
    manifest = Write(spec=job()).body("whole")
    stored = await server.create(JOBS, manifest)
    responses = [await server.request("PUT", f"{JOBS}/whole", manifest)]
    stored["spec"]["parallelism"] = 4
    responses.append(await server.request("PUT", f"{JOBS}/whole", stored))
    responses.append(await server.request("PUT", f"{JOBS}/whole", stored))  # stale
    del stored["metadata"]["resourceVersion"]
    stored["spec"]["backoffLimit"] = 3
    responses.append(await server.request("PUT", f"{JOBS}/whole", stored))
    stored["status"] = STARTED | {"active": 1}
    stored["spec"]["parallelism"] = -1
    responses.append(await server.request("PUT", f"{JOBS}/whole/status", stored))
    responses.append(await server.request("PUT", f"{JOBS}/none", Write(spec=job()).body("none")))
    manifest = Write(resource=BATCH_CRONJOBS, spec=cron()).body("nightly")
    await server.create(CRONS, manifest)
    manifest["spec"]["suspend"] = True
    responses.append(await server.request("PUT", f"{CRONS}/nightly", manifest))
    responses.append(
        await server.request(
            "PUT",
            f"{CRONS}/nightly/status",
            {**manifest, "spec": {}, "status": {"lastScheduleTime": STARTED["startTime"]}},
        )
    )
    return [_outcome(each) for each in responses]  # fmt: skip


async def _deletions(server: Server) -> list[Any]:
    """Warnings, and whether the Job is kept until its pods have lost their owner."""
    results: list[Any] = []
    for name, method, query in (
        ("silent", "DELETE", ""),
        ("orphan", "DELETE", "?propagationPolicy=Orphan"),
        ("background", "DELETE", "?propagationPolicy=Background"),
        ("foreground", "DELETE", "?propagationPolicy=Foreground"),
        ("old-way", "DELETE", "?orphanDependents=false"),
    ):
        for finalizers in ([], ["foregroundDeletion"]):
            write = Write(spec=job(), metadata={"finalizers": ["a.io/kept", *finalizers]})
            full_name = f"{name}-{len(finalizers)}"
            await server.create(JOBS, write.body(full_name))
            deleted = await server.request(method, f"{JOBS}/{full_name}{query}")
            metadata = deleted.body["metadata"]
            results.append(
                (
                    full_name,
                    deleted.status,
                    metadata["finalizers"],
                    metadata["generation"],
                    deleted.warnings,
                )
            )
    every = await server.request("DELETE", f"{JOBS}?labelSelector=none")
    results.append((every.status, every.warnings))
    every = await server.request("DELETE", f"{JOBS}?labelSelector=none&propagationPolicy=Orphan")
    results.append((every.status, every.warnings))
    await server.create(CRONS, Write(resource=BATCH_CRONJOBS, spec=cron()).body("c"))
    deleted = await server.request("DELETE", f"{CRONS}/c")
    results.append((deleted.status, deleted.body["kind"], deleted.warnings))
    return results  # fmt: skip


async def _readings(server: Server) -> list[Any]:
    """Tables, field selectors, and a subresource that there is not."""
    pod = {"containers": [*POD["containers"], {"name": "side", "image": "busybox:2"}]}
    for name, spec, status in (
        ("done", job(completions=2), COMPLETE | {"succeeded": 2}),
        ("many", job(parallelism=3), {}),
        ("some", indexed(), {"succeeded": 1}),
        ("idle", SUSPENDED, {"conditions": [{"type": "Suspended", "status": "True"}]}),
        (
            "wide",
            {
                "template": {"spec": POD | pod},
                "manualSelector": True,
                "selector": {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]},
            },
            {},
        ),
    ):
        await server.create(JOBS, Write(spec=spec).body(name))
        patch = {"status": status}
        await server.request("PATCH", f"{JOBS}/{name}/status", patch, content_type=MERGE)
    for name, spec in (("hourly", cron("@hourly")), ("there", cron(timeZone="UTC", suspend=True))):
        await server.create(CRONS, Write(resource=BATCH_CRONJOBS, spec=spec).body(name))
    results: list[Any] = []
    for path in (JOBS, CRONS):
        table = (await server.request("GET", path, headers=TABLE)).body
        results += [
            [
                {k: v for k, v in each.items() if k != "description"}
                for each in table["columnDefinitions"]
            ],
            [row["cells"] for row in table["rows"]],
        ]
    for query in (
        "status.successful=2",
        "status.successful!=0",
        "metadata.name=many",
        "spec.suspend=true",
    ):
        found = await server.request("GET", f"{JOBS}?fieldSelector={query}")
        names = [each["metadata"]["name"] for each in found.body.get("items", ())]
        results.append((query, found.status, names, found.body.get("message")))
    found = await server.request("GET", f"{CRONS}?fieldSelector=spec.suspend=true")
    results.append((found.status, found.body["message"]))
    found = await server.request("GET", f"{JOBS}/done/scale")
    results.append((found.status, found.body["message"]))
    return [_map_texts(_without_ages(each), _normalized) for each in results]  # fmt: skip


def _without_ages(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_ages(each) for each in value]
    return "age" if isinstance(value, str) and re.fullmatch(r"\d+s", value) else value


@pytest.mark.parametrize(
    "conversation", [_replacements, _deletions, _readings], ids=lambda each: each.__name__[1:]
)
async def test_a_conversation_is_the_same(
    real: RealServerFactory, tmp_path: Path, conversation: Conversation
) -> None:
    async with _both(real, tmp_path) as (theirs, ours):
        expected, actual = await asyncio.gather(conversation(theirs), conversation(ours))
    assert len(expected) == len(actual)
    different = [pair for pair in zip(expected, actual, strict=True) if pair[0] != pair[1]]
    assert different == []
