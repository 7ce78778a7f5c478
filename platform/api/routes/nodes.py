"""Routes of nodes: list, and the pods of one. Both are read with the caller's rights."""

from typing import Annotated

from fastapi import APIRouter, Query

from ...kube.errors import BadRequestError, GoneError
from ...model import times
from ...model.base import ApiStruct
from ...model.meta import Condition, ObjectMeta
from ...model.names import NODES, PODS
from ...model.pod import FINISHED
from ...model.pod_resources import PodResources, effective_resources
from ...model.quantity import QuantityError
from ...wire import nodes
from ..http.query_values import WHOLE_NUMBER
from ..problems import ProblemError, invalid_fields, problem_responses
from ..schemas.responses import WireRoute
from .dependencies import Caller, Name

router = APIRouter(prefix="/v1", tags=["nodes"], route_class=WireRoute)


class _Taint(ApiStruct, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        value = f"={self.value}" if self.value else ""
        return f"{self.key}{value}:{self.effect}"


class _NodeSpec(ApiStruct, frozen=True):
    unschedulable: bool = False
    taints: tuple[_Taint, ...] = ()


class _NodeStatus(ApiStruct, frozen=True):
    allocatable: dict[str, str | int | float] = {}
    conditions: tuple[Condition, ...] = ()


class _Node(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


class _PodStatus(ApiStruct, frozen=True):
    phase: str = ""


class _Pod(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodResources = PodResources()
    status: _PodStatus = _PodStatus()


@router.get("/nodes", summary="Nodes", responses=problem_responses(410))
async def list_nodes(
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=500), WHOLE_NUMBER] = 100,
    cursor: Annotated[
        str, Query(max_length=4096, description="`next_cursor` of the previous page.")
    ] = "",
) -> nodes.NodePage:
    """List the nodes by name, page by page; the caller needs the right to list nodes."""
    try:
        page = await caller.client.list(NODES, view=_Node, limit=limit, continue_token=cursor)
    except GoneError:
        raise ProblemError(410, "the cursor has expired; begin with the first page") from None
    except BadRequestError as error:
        if not cursor:
            raise
        text = f"not a cursor of this list: {error.message}"
        raise invalid_fields(("cursor", text)) from None
    items = [_node_of(node) for node in page.items]
    return nodes.NodePage(items=items, next_cursor=page.continue_token or None)


@router.get("/nodes/{name}/pods", summary="The pods of a node")
async def list_node_pods(name: Name, caller: Caller) -> nodes.NodePodList:
    """List the pods on a node; an unknown one has none. The caller needs the right to list the
    pods of all namespaces."""
    found = await caller.client.list(PODS, view=_Pod, field_selector=f"spec.nodeName={name}")
    return nodes.NodePodList(items=[_pod_of(pod) for pod in found.items])


def _node_of(node: _Node) -> nodes.Node:
    meta, conditions = node.metadata, node.status.conditions
    return nodes.Node(
        name=meta.name,
        ready=any((each.type, each.status) == ("Ready", "True") for each in conditions),
        unschedulable=node.spec.unschedulable,
        taints=[str(taint) for taint in node.spec.taints],
        allocatable={name: str(amount) for name, amount in node.status.allocatable.items()},
        labels=meta.labels,
        created_at=times.known(meta.creation_timestamp),
        deleting=meta.deletion_timestamp is not None,
    )


def _pod_of(pod: _Pod) -> nodes.NodePod:
    meta, owner = pod.metadata, pod.metadata.controller
    return nodes.NodePod(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        phase=pod.status.phase,
        owner_kind="" if owner is None else owner.kind,
        owner_name="" if owner is None else owner.name,
        requests={} if pod.status.phase in FINISHED else _requests(pod.spec),
        deleting=meta.deletion_timestamp is not None,
    )


def _requests(spec: PodResources) -> dict[str, str]:
    try:
        amounts = effective_resources(spec, "requests")
    except QuantityError:
        return {}
    return {name: str(amount) for name, amount in amounts.items()}
