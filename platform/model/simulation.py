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


class Forecast(ApiStruct, frozen=True):
    """When a job that has to wait would start, as far as that is known."""

    start: float | None = None
    """Unix time."""

    basis: str = ""
    """What the start follows from: ``limit`` if all that ends before has a limit, ``estimate`` if
    not; ``unknown`` if the job waits for gangs whose end is not known."""

    not_before: float | None = None
    """Until when what ends does not let it start, if the time of the simulation was over then."""


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

    forecast: Forecast = Forecast()
    """When it would start, if it would wait."""

    changes: tuple[TriedChange, ...] = ()
    is_complete: bool = True
    """Whether all changes were tried in the time that a simulation has."""
