"""Request and response of the REST API and the scheduler about a job that does not exist."""

import msgspec

from .base import ApiStruct

MAX_PODS = 20_000
"""Pods of a job that is simulated."""

ENDPOINT = "batholith-scheduler-endpoint"
"""Secret with the address of the leading scheduler, in its namespace; its keys follow."""

URL_KEY, CA_KEY, TOKEN_KEY = "url", "ca.crt", "token"
SERVER_NAME = "batholith-scheduler"
"""Name in the certificate, at any address."""

PATH = "/simulate"


class SimulationRequest(ApiStruct, frozen=True):
    """A Volcano job, with the defaults of admission."""

    job: msgspec.Raw


class NodePods(ApiStruct, frozen=True):
    """How many pods a node would get."""

    node: str
    pods: int


class TriedChange(ApiStruct, frozen=True):
    """A change of the job, and whether it would start now with it."""

    kind: str
    """``pods``, ``queue`` or ``requests``."""

    starts_now: bool
    pods: int | None = None
    """Pods of the gang, where that is the change."""

    queue: str = ""
    requests: dict[str, str] = {}
    """Request of each pod by resource."""


class SimulationResult(ApiStruct, frozen=True):
    """What the scheduler would do with the job now."""

    starts_now: bool
    nodes: tuple[NodePods, ...] = ()
    evictions: int = 0
    """Pods that would be evicted for it."""

    why: str = ""
    """The explanation as in the annotation of PodGroups, if it would wait."""

    impossible: bool = False
    """Whether it could not start even if nothing else ran."""

    changes: tuple[TriedChange, ...] = ()
    is_complete: bool = True
    """Whether all changes were tried in the time that a simulation has."""
