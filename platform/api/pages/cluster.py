"""The page of the cluster: what the pods on each node request, as a packing plot, and what is
reserved there for jobs that wait."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.responses import Response

from ...model.quantity import QuantityError, parse
from ...wire.nodes import Node, NodePage, NodePod, NodePodList
from ...wire.waits import PURPOSES, OtherJob, Reservation, ReservationList
from .rendering import timestamp
from .rest import RestError, encode_query, rest_path
from .web import Page

BAR = 420
"""Width of a bar: all that a node may give."""
LIMIT = 25
"""Nodes on one page."""
COLOURS = 6
_FIRST = ("cpu", "memory")
_OMITTED = ("pods", "ephemeral-storage")
_UNAUTHORIZED = 401


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What one pod requests of a resource."""

    x: float
    width: float
    colour: int
    """Number of its colour, the same for all pods of an owner."""
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """One resource of a node, divided by pods."""

    resource: str
    allocatable: str
    requested: str
    """Sum, as a share in per cent."""
    slices: Sequence[Slice]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """What is reserved on one node."""

    job: OtherJob | None
    amounts: Mapping[str, str]
    text: str
    """Why, and until when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node with its pods."""

    node: Node
    pods: Sequence[NodePod]
    packings: Sequence[Packing]
    reserved: Sequence[Reserved] = ()


async def show_cluster(page: Page) -> Response:
    """Show a page of the nodes."""
    query = {"limit": LIMIT, "cursor": page.query.get("cursor")}
    found = await page.rest.get(rest_path("nodes"), NodePage, query)
    problem = ""
    pods: list[list[NodePod]] = [[] for _ in found.items]
    reads = (
        page.rest.get(rest_path("nodes", node.name, "pods"), NodePodList) for node in found.items
    )
    try:
        pods = [each.items for each in await asyncio.gather(*reads)]
    except RestError as error:
        if error.status == _UNAUTHORIZED:
            raise
        problem = error.detail
    reservations, unknown_reservations = await _read_reservations(page)
    reserved = reserved_by_node(reservations)
    rows = [
        NodeRow(
            node=node,
            pods=each,
            packings=pack(node, each),
            reserved=reserved.get(node.name, ()),
        )
        for node, each in zip(found.items, pods, strict=True)
    ]
    url = "/cluster?" + encode_query({"cursor": page.query.get("cursor")})
    next_url = ""
    if found.next_cursor is not None:
        next_url = "/cluster?" + encode_query({"cursor": found.next_cursor})
    return page.render(
        "cluster_list.html" if page.is_fragment else "cluster.html",
        rows=rows,
        url=url,
        next_url=next_url,
        problem=problem,
        reservations=[(each, purpose_text(each)) for each in reservations],
        unknown_reservations=unknown_reservations,
        bar=BAR,
    )


async def _read_reservations(page: Page) -> tuple[Sequence[Reservation], str]:
    """Return what is reserved, and why that is not all of it."""
    try:
        found = await page.rest.get(rest_path("reservations"), ReservationList)
    except RestError as error:
        if error.status == _UNAUTHORIZED:
            raise
        return (), f"What is reserved for jobs that wait is not known: {error.detail}."
    return found.items, "" if found.is_complete else "More is reserved than is shown."


def reserved_by_node(reservations: Sequence[Reservation]) -> Mapping[str, Sequence[Reserved]]:
    """Return what is reserved on each node."""
    found: dict[str, list[Reserved]] = {}
    for each in reservations:
        for node in each.nodes:
            entry = Reserved(job=each.job, amounts=node.amounts, text=purpose_text(each))
            found.setdefault(node.node, []).append(entry)
    return found


def purpose_text(reservation: Reservation) -> str:
    """Return why something is reserved, and until when."""
    if reservation.purpose == "start":
        if reservation.start is None:
            return "its start is planned, for a time that is not known"
        return f"its start is planned for {timestamp(reservation.start)} UTC"
    text = PURPOSES.get(reservation.purpose, reservation.purpose)
    return (
        text if reservation.until is None else f"{text}; until {timestamp(reservation.until)} UTC"
    )


def pack(node: Node, pods: Sequence[NodePod]) -> list[Packing]:
    """Return what *pods* request of each resource of *node*, by owner."""
    ordered = sorted(pods, key=lambda pod: (pod.namespace, pod.owner_name, pod.name))
    given = node.allocatable.items()
    names = [name for name, amount in given if name not in _OMITTED and _number(amount)]
    names.sort(key=lambda each: (each not in _FIRST, each))
    return [_pack(node, ordered, name) for name in names]


def _pack(node: Node, pods: Sequence[NodePod], resource: str) -> Packing:
    allocatable = _number(node.allocatable[resource])
    slices, x = [], 0.0
    for pod in pods:
        if resource not in pod.requests:
            continue
        width = BAR * _number(pod.requests[resource]) / allocatable
        if not width:
            continue
        owner = f" of {pod.owner_kind} {pod.owner_name}" if pod.owner_name else ""
        slices.append(
            Slice(
                x=round(x, 1),
                width=round(max(width - 1, 1.0), 1),
                colour=_colour(pod),
                title=f"{pod.namespace}/{pod.name}{owner}: {resource} {pod.requests[resource]}",
            )
        )
        x += width
    return Packing(
        resource=resource,
        allocatable=node.allocatable[resource],
        requested=f"{100 * x / BAR:.0f}%",
        slices=slices,
    )


def _colour(pod: NodePod) -> int:
    text = f"{pod.namespace}/{pod.owner_name or pod.name}".encode()
    return sum(text) % COLOURS


def _number(quantity: str) -> float:
    try:
        return parse(quantity).milli_value() / 1000
    except QuantityError:
        return 0.0


ROUTES = (("GET", "/cluster", show_cluster),)
