"""Placement at creation: what job controller and scheduler exchange about pods that do not exist
yet, in annotations of their PodGroup (docs/decisions/0012).

*Members* describe the pods of a job, a *plan* names their nodes. Users may write both, so decoding
accepts nothing that could not have been encoded here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TypeVar

import msgspec

from .base import ApiStruct

MAX_TEXT = 64 * 1024
"""Characters of an annotation."""

MAX_MEMBERS = 20_000
"""Pods of one gang."""

PLAN_SECONDS = 30.0
"""Seconds for which pods may be created by a plan, unless it is extended."""

REQUEST_SECONDS = 10.0
"""Seconds within which the API server carries out a request to create a planned pod, or never."""

CLOCK_SKEW_SECONDS = 5.0
"""Seconds by which the clocks of job controller and scheduler may differ."""

GRACE_SECONDS = REQUEST_SECONDS + CLOCK_SKEW_SECONDS
"""Seconds after the end of a plan in which a pod may still be created by it."""

_MAX_NAME = 253
_MAX_INT = 2**31 - 1

T = TypeVar("T")


class MemberRole(ApiStruct, frozen=True):
    """The pods of one task, which are equal in all that scheduling reads."""

    name: str
    count: int
    pod: msgspec.Raw
    """Labels, annotations and spec of each pod."""

    first: int = 0
    """Index of the first pod."""

    priority: int | None = None
    """What admission sets as ``spec.priority``."""


class Members(ApiStruct, frozen=True):
    """The pods of one version of a job."""

    job: str
    """Name of the job."""

    uid: str
    """Uid of the job."""

    version: int
    roles: tuple[MemberRole, ...]

    @property
    def count(self) -> int:
        """Number of pods."""
        return sum(role.count for role in self.roles)

    def pod_name(self, role: str, index: int) -> str:
        """Return the name of a pod."""
        return f"{self.job}-{role}-{index}"


class _PlanBody(ApiStruct, frozen=True):
    """A plan on the wire."""

    id: str
    members: str
    version: int
    until: int
    nodes: tuple[str, ...]
    roles: dict[str, tuple[tuple[int, int, int], ...]]
    """Runs of equal nodes by task: number of the node, first index, number of pods."""

    former: dict[str, tuple[tuple[int, int, int], ...]] = {}
    """The same of earlier plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The nodes of members, valid for a time."""

    id: str
    members: str
    """Hash of the text of the members."""

    version: int
    """Version of the job."""

    until: int
    """Unix time after which no pod may be created by the plan."""

    nodes: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """Nodes by task and index."""

    former: tuple[tuple[tuple[str, int], str], ...] = ()
    """Nodes on which pods may still be created by earlier plans of these members."""

    def encode(self) -> str:
        """Return the text of the annotation."""
        numbers: dict[str, int] = {}
        roles = _runs(sorted(self.nodes.items()), numbers)
        former = _runs(sorted(self.former), numbers)
        body = _PlanBody(
            id=self.id,
            members=self.members,
            version=self.version,
            until=self.until,
            nodes=tuple(numbers),
            roles=roles,
            former=former,
        )
        return _ENCODE(body).decode()


def _runs(
    nodes: Iterable[tuple[tuple[str, int], str]], numbers: dict[str, int]
) -> dict[str, tuple[tuple[int, int, int], ...]]:
    """Return *nodes* by index as runs; nodes that have no number get one."""
    runs: dict[str, list[tuple[int, int, int]]] = {}
    for (role, index), node in nodes:
        number = numbers.setdefault(node, len(numbers))
        own = runs.setdefault(role, [])
        if own and own[-1][0] == number and own[-1][1] + own[-1][2] == index:
            own[-1] = (number, own[-1][1], own[-1][2] + 1)
        else:
            own.append((number, index, 1))
    return {role: tuple(own) for role, own in runs.items()}


def hash_of(text: str) -> str:
    """Return the hash of the text of members."""
    return sha256(text.encode()).hexdigest()[:32]


def encode_members(members: Members) -> str:
    """Return the text of the annotation; equal members have equal texts."""
    return _ENCODE(members).decode()


def decode_members(text: str) -> Members | None:
    """Return the members, or ``None`` if *text* describes none."""
    members = _decode(text, _MEMBERS)
    if members is None or not _is_name(members.job) or not _is_name(members.uid):
        return None
    names = [role.name for role in members.roles]
    is_valid = (
        0 <= members.version <= _MAX_INT
        and bool(names)
        and len(set(names)) == len(names)
        and all(map(_is_name, names))
        and all(0 <= role.first <= _MAX_INT for role in members.roles)
        and all(0 <= role.count <= MAX_MEMBERS for role in members.roles)
        and all(abs(role.priority or 0) <= _MAX_INT for role in members.roles)
        and members.count <= MAX_MEMBERS
    )
    return members if is_valid else None


def decode_plan(text: str) -> Plan | None:
    """Return the plan, or ``None`` if *text* is none."""
    body = _decode(text, _PLAN)
    if body is None or not 0 < len(body.id) <= _MAX_NAME or not all(map(_is_name, body.nodes)):
        return None
    if not 0 <= body.version <= _MAX_INT or not 0 <= body.until <= 2**40:
        return None
    if not all(map(_is_name, (*body.roles, *body.former))):
        return None
    if not _are_runs(body.roles, body.nodes, once=True) or not _are_runs(
        body.former, body.nodes, once=False
    ):
        return None
    return Plan(
        id=body.id,
        members=body.members,
        version=body.version,
        until=body.until,
        nodes=dict(_nodes_by_index(body.roles, body.nodes)),
        former=tuple(_nodes_by_index(body.former, body.nodes)),
    )


def _nodes_by_index(
    roles: Mapping[str, Iterable[tuple[int, int, int]]], nodes: Sequence[str]
) -> Iterator[tuple[tuple[str, int], str]]:
    """Return the node of each index of *roles*."""
    for role, runs in roles.items():
        for number, first, count in runs:
            for index in range(first, first + count):
                yield (role, index), nodes[number]


def _are_runs(
    roles: Mapping[str, Iterable[tuple[int, int, int]]], nodes: Sequence[str], *, once: bool
) -> bool:
    """Return whether the runs name existing nodes and, if *once*, each index at most once."""
    total = 0
    for runs in roles.values():
        end = 0
        for number, first, count in runs:
            total += count
            if not 0 <= number < len(nodes) or not 0 < count <= MAX_MEMBERS:
                return False
            if not end <= first <= _MAX_INT or total > MAX_MEMBERS:
                return False
            end = first + count if once else 0
    return True


def _decode(text: str, decoder: msgspec.json.Decoder[T]) -> T | None:
    if len(text) > MAX_TEXT:
        return None
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _MAX_NAME and not _FORBIDDEN.intersection(text)


_FORBIDDEN = frozenset("/% \n\t\"'\\")
_ENCODE = msgspec.json.Encoder(order="deterministic").encode
_MEMBERS, _PLAN = msgspec.json.Decoder(Members), msgspec.json.Decoder(_PlanBody)
