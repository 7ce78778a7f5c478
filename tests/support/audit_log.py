"""Reads an API server's audit log: leaderships, stale writes, duplicate creations.

Needs the bodies of writes (`RULES`), and one user for each process.
Times are those of the server, to the microsecond, as text that sorts as it should. A leadership
begins when the Lease write that acquires it is completed, and ends when the write that ends it is
received. A request received outside of a leadership was sent outside of it; one that was received
before its end and executed later cannot be revoked, and the log does not show which was first.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from batholith.model.names import JOB_VERSION

Json = dict[str, Any]

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})

RULES: tuple[Json, ...] = (
    {"level": "Metadata", "resources": [{"group": "", "resources": ["events", "nodes"]}]},
    {"level": "Request", "verbs": sorted(WRITES)},
)
"""Additional audit rules: request bodies of the relevant writes."""

LEASE_MARGIN = "~"
"""End of a leadership that is not over: sorts after all times."""


def successful_writes(
    lines: Iterable[Json], *, of: Collection[str], besides: Collection[str]
) -> Iterator[str]:
    """Verb and resource of each write of the users *of*, without the resources *besides*."""
    for line in lines:
        about = line.get("objectRef", {})
        resource, below = about.get("resource", ""), about.get("subresource", "")
        is_write = line["verb"] in WRITES and resource not in besides
        if is_write and line["user"]["username"] in of and line["responseStatus"]["code"] < 300:
            yield f"{line['verb']} {resource}{'/' if below else ''}{below}"


def component_writes(lines: Iterable[Json]) -> Iterator[str]:
    """The successful writes of controllers and scheduler, without Events and queues: the counts of
    a queue are written by time, not by pod or job."""
    users = ("controllers", "scheduler")
    return successful_writes(lines, of=users, besides=("events", "queues"))


class _User(msgspec.Struct):
    username: str = ""


class _Ref(msgspec.Struct, rename="camel"):
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class _Status(msgspec.Struct):
    code: int = 0


class _Line(msgspec.Struct, rename="camel"):
    request_received_timestamp: str
    stage_timestamp: str
    verb: str
    user: _User = msgspec.field(default_factory=_User)
    object_ref: _Ref = msgspec.field(default_factory=_Ref)
    response_status: _Status = msgspec.field(default_factory=_Status)
    request_object: Json | None = None
    stage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedRequest:
    """One request that the server answered."""

    user: str
    verb: str
    resource: str
    """With its sub-resource, as in ``jobs/status``."""
    name: str
    code: int
    received: str
    done: str
    body: Json = field(default_factory=dict)
    """What was sent, where the policy keeps it."""

    @property
    def took_effect(self) -> bool:
        """Whether the response shows a write that was executed."""
        return self.verb in WRITES and 200 <= self.code < 300

    @property
    def may_have_taken_effect(self) -> bool:
        """Whether it was a write of unknown outcome: its client disconnected before the
        response."""
        return self.verb in WRITES and self.code >= 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """The time that a user held a Lease."""

    user: str
    identity: str
    transitions: int
    began: str
    ended: str = LEASE_MARGIN


@dataclass(frozen=True, slots=True)
class StaleWrite:
    """A write that took effect, or may have, though its user did not lead when it was sent."""

    request: AuditedRequest
    reason: str


def parse(line: bytes) -> AuditedRequest:
    """One line of the log."""
    result = msgspec.json.decode(line, type=_Line)
    ref = result.object_ref
    return AuditedRequest(
        user=result.user.username,
        verb=result.verb,
        resource=f"{ref.resource}/{ref.subresource}" if ref.subresource else ref.resource,
        name=f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name,
        code=result.response_status.code,
        received=result.request_received_timestamp,
        done=result.stage_timestamp,
        body=result.request_object or {},
    )


class AuditLog:
    """A log that grows; reads only what is new at each look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._requests: list[AuditedRequest] = []

    def requests(self) -> Sequence[AuditedRequest]:
        """All requests so far; a line that is not complete yet waits for the next look."""
        with self._path.open("rb") as log:
            log.seek(self._read)
            fresh, _, _ = log.read().rpartition(b"\n")
        if fresh:
            self._read += len(fresh) + 1
            self._requests += map(parse, fresh.splitlines())
        return self._requests

    def leader(self, lease: str) -> str:
        """The current holder of a Lease; empty if there is none."""
        last = leaderships(self.requests(), lease)[-1:]
        return last[0].user if last and last[0].ended == LEASE_MARGIN else ""


def leaderships(requests: Iterable[AuditedRequest], lease: str) -> list[Leadership]:
    """Who held the Lease ``namespace/name``, in order of time."""
    found: list[Leadership] = []
    writes = [one for one in requests if one.resource == "leases" and one.name == lease]
    for write in sorted((one for one in writes if one.took_effect), key=lambda one: one.done):
        spec = write.body.get("spec", {})
        last = found[-1] if found else None
        rules = last is not None and last.ended == LEASE_MARGIN
        holder = spec.get("holderIdentity", last.identity if last and rules else "") or ""
        if last is not None and rules and last.identity == holder:
            continue  # a renewal
        if last is not None and rules:
            found[-1] = replace(last, ended=write.received)
        if holder:
            found.append(
                Leadership(
                    user=write.user,
                    identity=holder,
                    transitions=spec.get("leaseTransitions") or 0,
                    began=write.done,
                )
            )
    return found


def stale_writes(
    requests: Iterable[AuditedRequest],
    lease: str,
    users: Iterable[str],
    *,
    exempt: Iterable[str] = (),
) -> list[StaleWrite]:
    """Writes of *users* that took effect, or may have, outside of their leadership.

    Writes of Leases and of events about them do not count, nor do resources that are *exempt*.
    """
    requests, users, exempt = list(requests), set(users), {"leases", *exempt}
    by_user: dict[str, list[Leadership]] = defaultdict(list)
    for leadership in leaderships(requests, lease):
        by_user[leadership.user].append(leadership)
    found = []
    for one in requests:
        if one.user not in users or one.resource in exempt or is_lease_event(lease, one):
            continue
        if not (one.took_effect or one.may_have_taken_effect):
            continue
        if why := outside_leadership(one, by_user[one.user]):
            found.append(StaleWrite(one, why))
    return found


def is_lease_event(lease: str, request: AuditedRequest) -> bool:
    """Whether it is an event about the Lease: candidates record when they start or stop leading."""
    return request.resource == "events" and request.name.startswith(f"{lease}.")


def outside_leadership(request: AuditedRequest, held: Sequence[Leadership]) -> str:
    """Why a request was not sent inside one of the leaderships_of; empty if it was."""
    before = [leadership for leadership in held if leadership.began <= request.received]
    if not before:
        return "had never led" if not held else f"led only from {held[0].began} on"
    last = before[-1]
    if request.received >= last.ended:
        return f"was received at {request.received}, after its leadership, which ended {last.ended}"
    return ""


def pod_creations(requests: Iterable[AuditedRequest]) -> Counter[tuple[str, str]]:
    """How often a pod of a job was created, by name (which holds the index) and job version.

    A pod may be missing if its creator was killed during the request.
    """
    return Counter(
        (one.name, _version(one.body))
        for one in requests
        if one.resource == "pods" and one.verb == "create" and one.took_effect
    )


def _version(body: Json) -> str:
    notes = body.get("metadata", {}).get("annotations") or {}
    return str(notes.get(JOB_VERSION, ""))


def write_counts(requests: Iterable[AuditedRequest]) -> Iterator[tuple[str, int]]:
    """What took effect, by user, verb and resource, most often first; for reports."""
    found = Counter(f"{one.user} {one.verb} {one.resource}" for one in requests if one.took_effect)
    yield from found.most_common()
