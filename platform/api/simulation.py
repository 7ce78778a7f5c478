"""Simulations by the leading scheduler, and what it knows about gangs that wait.

It publishes in a Secret where it serves that.
"""

import ssl
from base64 import b64decode
from binascii import Error as Base64Error
from datetime import UTC, datetime
from typing import Any

import msgspec

from ..kube.client.client import Client
from ..kube.errors import ForbiddenError, NotFoundError
from ..machinery.clock import Clock
from ..model import times
from ..model.base import ApiStruct
from ..model.dependencies import begin_of, dependencies_of
from ..model.job import Job
from ..model.names import SECRETS
from ..model.run_times import Basis
from ..model.scheduler_questions import (
    RESERVATIONS_PATH,
    WAIT_PATH,
    Reservations,
    WaitDetails,
    WaitRequest,
)
from ..model.simulation import (
    CA_KEY,
    ENDPOINT,
    PATH,
    SERVER_NAME,
    TOKEN_KEY,
    URL_KEY,
    Forecast,
    SimulationRequest,
    SimulationResult,
    TriedChange,
)
from ..wire.simulation import NodePods, SimulatedChange, Simulation
from .identity.review_cache import ExpiringCache, SingleFlight
from .jobs.explanations import decode_explanation
from .problems import ProblemError

TIMEOUT = 10.0
"""Seconds for the scheduler to respond."""

_CONNECT_TIMEOUT = 1.0
"""Seconds to connect: from outside a cluster its addresses lead nowhere."""

_QUESTION_TIMEOUT = 3.0
"""Seconds for the scheduler to respond to a question; what it knows is part of responses that are
useful without it."""

_RESPONSE_TTL = 5.0
"""Seconds for which a response of the scheduler to a question is cached."""

_MAX_RESPONSES = 256
"""Maximum number of cached responses."""

_RETRY_AFTER = 5.0


class _Secret(ApiStruct, frozen=True):
    data: dict[str, str] = {}


class SchedulerSimulations:
    """Asks the leading scheduler."""

    def __init__(self, client: Client, namespace: str, *, clock: Clock) -> None:
        """Ask the scheduler of *namespace*; *client* acts with the account of the REST API."""
        self._client = client
        self._namespace = namespace
        self._responses: ExpiringCache[tuple[str, bytes], bytes] = ExpiringCache(
            _MAX_RESPONSES, clock
        )
        self._questions: SingleFlight[tuple[str, bytes], bytes] = SingleFlight()

    async def simulate(self, job: bytes) -> SimulationResult:
        """Return what would become of *job*, a Volcano job in JSON with its defaults.

        Raises:
            ProblemError: 422 if the job is malformed, 503 if no scheduler responds.
        """
        body = msgspec.json.encode(SimulationRequest(msgspec.Raw(job)))
        return msgspec.json.decode(await self._post(PATH, body, TIMEOUT), type=SimulationResult)

    async def explain_wait(self, request: WaitRequest) -> WaitDetails | None:
        """Return what a gang competes with that waits; ``None`` if there is no such gang.

        Raises:
            ProblemError: 503 if no scheduler responds.
        """
        response = await self._ask(WAIT_PATH, msgspec.json.encode(request))
        found: WaitDetails | None = _decoded(response, WaitDetails | None)
        return found

    async def list_reservations(self) -> Reservations:
        """Return what is reserved on nodes, and for whom.

        Raises:
            ProblemError: 503 if no scheduler responds.
        """
        found: Reservations = _decoded(await self._ask(RESERVATIONS_PATH, b"{}"), Reservations)
        return found

    async def _ask(self, path: str, body: bytes) -> bytes:
        """Return the response to a question, which is kept for those who ask it soon after."""
        question = (path, body)
        response = self._responses.get(question)
        if response is None:
            response = await self._questions.run(
                question, lambda: self._post(path, body, _QUESTION_TIMEOUT)
            )
            self._responses.put(question, response, seconds=_RESPONSE_TTL)
        return response

    async def _post(self, path: str, body: bytes, seconds: float) -> bytes:
        import aiohttp  # slow to import, and seldom needed

        url, tls, token = await self._endpoint()
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_TIMEOUT)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(
                    url + path,
                    data=body,
                    headers={"Authorization": f"Bearer {token}"},
                    ssl=tls,
                    server_hostname=SERVER_NAME,
                    allow_redirects=False,
                ) as response,
            ):
                status, content = response.status, await response.read()
        except (TimeoutError, aiohttp.ClientError) as error:
            raise _unavailable(f"the scheduler does not respond: {_reason(error)}") from None
        if status == 422:
            raise ProblemError(422, content.decode(errors="replace"))
        if status != 200:
            raise _unavailable(f"the scheduler responded with {status}")
        return content

    async def _endpoint(self) -> tuple[str, ssl.SSLContext, str]:
        name = f"{self._namespace}/{ENDPOINT}"
        try:
            secret = await self._client.get(
                SECRETS, ENDPOINT, namespace=self._namespace, view=_Secret
            )
        except NotFoundError:
            raise _unavailable(f"no scheduler serves simulations: no Secret {name}") from None
        except ForbiddenError as error:
            raise _unavailable(f"cannot read Secret {name}: {error}") from None
        try:
            url, ca, token = (
                b64decode(secret.data[key]).decode() for key in (URL_KEY, CA_KEY, TOKEN_KEY)
            )
            tls = ssl.create_default_context(cadata=ca)
        except (KeyError, Base64Error, UnicodeDecodeError, ssl.SSLError):
            raise _unavailable(f"no scheduler has published its address in Secret {name}") from None
        return url, tls, token


def _decoded(response: bytes, type_: Any) -> Any:
    try:
        return msgspec.json.decode(response, type=type_)
    except msgspec.MsgspecError as error:  # a scheduler of another version
        raise _unavailable(f"cannot decode what the scheduler responded: {error}") from None


def _reason(error: Exception) -> str:
    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(
        error, aiohttp.ClientSSLError
    ):
        return f"cannot connect to {error.host}:{error.port}"  # its own text shows Python objects
    return str(error) or type(error).__name__


def _unavailable(text: str) -> ProblemError:
    return ProblemError(503, text, retry_after=_RETRY_AFTER)


def simulation_of(result: SimulationResult, job: Job, now: datetime) -> Simulation:
    """Return the response for the *result* of *job* at the time *now*."""
    changes = [_change(each, job) for each in result.changes]
    explanation = decode_explanation(result.why)
    if result.starts_now:
        summary, next_step = _start(result), "submit it"
    else:
        summary = explanation.message if explanation is not None else "it would wait"
        helpful = next((each for each in changes if each.starts_now), None)
        if helpful is not None:
            next_step = helpful.summary
        elif result.impossible:
            next_step = "ask for less: it could not start even if nothing else ran"
        else:
            next_step = _waiting(result.forecast)
    assumed = _assumed(job, now)
    if assumed:
        summary = f"after {' and '.join(assumed)}, {summary}"
    return Simulation(
        starts_now=result.starts_now,
        summary=summary,
        next_step=next_step,
        nodes=[NodePods(node=each.node, pods=each.pods) for each in result.nodes],
        evictions=result.evictions,
        assumed=assumed,
        explanation=explanation,
        impossible=result.impossible,
        expected_start=_time(result.forecast.start),
        start_basis=result.forecast.basis,
        not_before=_time(result.forecast.not_before),
        changes=changes,
        all_changes_tried=result.is_complete,
    )


def _assumed(job: Job, now: datetime) -> list[str]:
    """Return for what *job* waits before it has a PodGroup, which the scheduler needs."""
    annotations = job.metadata.annotations
    found = [str(each) for each in dependencies_of(annotations)]
    begin = begin_of(annotations)
    if begin is not None and begin > now:
        found.append(f"its begin at {times.format(begin)}")
    if job.spec.suspend:
        found.append("its release")
    return found


def _waiting(forecast: Forecast) -> str:
    start, until = _time(forecast.start), _time(forecast.not_before)
    if start is not None:
        about = "" if forecast.basis == Basis.LIMIT else "about "
        return f"wait until {about}{times.format(start)}, when enough other jobs have ended"
    if until is not None:
        return f"wait until other jobs have ended, which takes longer than {times.format(until)}"
    return "wait until other jobs have ended"


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _start(result: SimulationResult) -> str:
    pods = sum(each.pods for each in result.nodes)
    where = f"{_count(pods, 'pod')} on {_count(len(result.nodes), 'node')}"
    text = f"it would start now: {where}"
    evicted = _count(result.evictions, "pod")
    return f"{text}, after the eviction of {evicted}" if result.evictions else text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _change(tried: TriedChange, job: Job) -> SimulatedChange:
    match tried.kind:
        case "pods":
            what = f"with {_count(tried.pods or 0, 'pod')} instead of {job.spec.min_available}"
        case "queue":
            what = f"in queue {tried.queue}"
        case _:
            requests = ", ".join(f"{value} {name}" for name, value in tried.requests.items())
            what = f"with at most {requests} for each pod"
    would = "would start now" if tried.starts_now else "would wait, too,"
    return SimulatedChange(
        change=tried.kind,
        starts_now=tried.starts_now,
        summary=f"it {would} {what}",
        pods=tried.pods,
        queue=tried.queue or None,
        requests=tried.requests,
    )
