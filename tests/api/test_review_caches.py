"""Reviews of tokens and permissions are cached, bounded, and sent once for concurrent requests."""

import asyncio
import base64
import json
import secrets
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import BaseTestServer, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.polling import wait_for

from batholith.api.identity import reviewer as auth
from batholith.api.identity.authentication import Callers, SecuritySettings
from batholith.api.identity.client_certificates import ClientCertificate
from batholith.api.identity.review_cache import ExpiringCache, SingleFlight
from batholith.api.identity.reviewer import (
    AccessAttributes,
    AccessReviewer,
    UserInfo,
    jwt_expiration,
)
from batholith.api.problems import ProblemError
from batholith.kube.client.client import Client, ClientOptions
from batholith.kube.client.config import Credentials
from batholith.kube.errors import ConfigError
from batholith.machinery.testing import FakeClock
from batholith.model.names import JOBS, PODS

ADA = UserInfo(username="ada", groups=("builders",))
LIST = AccessAttributes(verb="list", resource=JOBS, namespace="default")


def jwt(payload: object) -> str:
    encoded = base64.urlsafe_b64encode(json.dumps(payload).encode()).decode().rstrip("=")
    return f"h.{encoded}.s"


@dataclass
class Reviews:
    """An API server that responds to reviews as configured by a test."""

    specs: list[dict[str, Any]] = field(default_factory=list)
    accepted: bool = True
    allowed: bool = True
    audiences: list[str] | None = None
    failure: int = 0
    resume: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.specs.append(body["spec"])
        await self.resume.wait()
        if self.failure:
            return web.json_response({"message": "no"}, status=self.failure)
        if body["kind"] == "TokenReview":
            status: dict[str, Any] = {"authenticated": self.accepted, "user": {"username": "ada"}}
            if self.audiences is not None:
                status["audiences"] = self.audiences
        else:
            status = {"allowed": self.allowed}
        return web.json_response({**body, "status": status}, status=201)


@asynccontextmanager
async def reviewing(
    clock: FakeClock, *audiences: str
) -> AsyncIterator[tuple[AccessReviewer, Reviews, BaseTestServer]]:
    reviews = Reviews()
    reviews.resume.set()
    app = web.Application()
    app.router.add_post("/{path:.*}", reviews.serve)
    async with TestServer(app) as server, client_of(server) as client:
        yield AccessReviewer(client, clock=clock, audiences=audiences), reviews, server


def client_of(server: BaseTestServer) -> Client:
    credentials = Credentials(server=str(server.make_url("")).rstrip("/"))
    return Client(credentials, user_agent="tests", options=ClientOptions(max_attempts=1))


async def status_of(reviewer: AccessReviewer, token: str) -> int:
    try:
        await reviewer.authenticate(token)
    except ProblemError as problem:
        return problem.status
    return 200


# Tokens.


async def test_a_rejected_token_is_reviewed_again_only_after_some_seconds() -> None:
    clock = FakeClock()
    async with reviewing(clock) as (reviewer, reviews, _):
        reviews.accepted = False
        assert [await status_of(reviewer, "t") for _ in range(3)] == [401] * 3
        assert len(reviews.specs) == 1
        reviews.accepted = True
        await clock.advance(auth.REJECTED_TOKEN_TTL)
        assert [await status_of(reviewer, "t") for _ in range(3)] == [200] * 3
        assert len(reviews.specs) == 2


async def test_rejected_tokens_do_not_displace_accepted_ones() -> None:
    async with reviewing(FakeClock()) as (reviewer, reviews, _):
        assert await status_of(reviewer, "good") == 200
        reviews.accepted = False
        for index in range(auth.TOKEN_CACHE_SIZE + 10):
            assert await status_of(reviewer, f"bad-{index}") == 401
        assert await status_of(reviewer, "good") == 200
        assert len(reviews.specs) == auth.TOKEN_CACHE_SIZE + 11
        assert len(reviewer._rejected) == auth.TOKEN_CACHE_SIZE


@pytest.mark.parametrize(("lifetime", "cached"), [(3, 3), (3600, auth.TOKEN_CACHE_TTL), (-5, 0)])
async def test_an_accepted_token_is_cached_until_it_expires_at_most(
    lifetime: int, cached: float
) -> None:
    clock = FakeClock()
    expires = clock.now() + timedelta(seconds=lifetime)
    token = jwt({"exp": expires.timestamp()})
    async with reviewing(clock) as (reviewer, reviews, _):
        assert (await reviewer.authenticate(token)).expires_at == expires
        if cached:
            await clock.advance(cached - 0.5)
            await reviewer.authenticate(token)
            assert len(reviews.specs) == 1
        await clock.advance(0.5)
        await reviewer.authenticate(token)
        assert len(reviews.specs) == 2


async def test_concurrent_requests_with_an_unknown_token_make_one_review() -> None:
    async with reviewing(FakeClock()) as (reviewer, reviews, _):
        reviews.resume.clear()
        waiting = [asyncio.create_task(reviewer.authenticate("t")) for _ in range(50)]
        other = asyncio.create_task(reviewer.authenticate("u"))
        await wait_for(lambda: len(reviews.specs) == 2)
        waiting[0].cancel()
        reviews.resume.set()
        found = await asyncio.gather(*waiting[1:], other)
        assert {each.user.username for each in found} == {"ada"}
        assert sorted(each["token"] for each in reviews.specs) == ["t", "u"]


@pytest.mark.parametrize(("failure", "status"), [(500, 503), (503, 503), (429, 503), (403, 502)])
async def test_a_failed_review_is_an_error_of_the_server_and_not_cached(
    failure: int, status: int
) -> None:
    async with reviewing(FakeClock()) as (reviewer, reviews, _):
        reviews.failure = failure
        assert await status_of(reviewer, "t") == status
        with pytest.raises(ProblemError) as caught:
            await reviewer.authorize(ADA, LIST)
        assert caught.value.status == status
        reviews.failure = 0
        assert await status_of(reviewer, "t") == 200
        await reviewer.authorize(ADA, LIST)


async def test_a_malformed_review_is_an_error_that_does_not_contain_the_token() -> None:
    """An error of the decoder contains what it could not decode."""
    async with reviewing(FakeClock()) as (reviewer, reviews, _):
        token = secrets.token_hex()
        reviews.audiences = [{"token": token}]  # type: ignore[list-item]
        with pytest.raises(ProblemError) as caught:
            await reviewer.authenticate(token)
        assert caught.value.status == 502
        assert token not in "".join(traceback.format_exception(caught.value))


async def test_an_unreachable_api_server_is_503_for_all_who_wait() -> None:
    async with reviewing(FakeClock()) as (reviewer, _, server):
        await server.close()
        found = await asyncio.gather(*(status_of(reviewer, "t") for _ in range(5)))
        assert found == [503] * 5


@pytest.mark.parametrize(
    ("shown", "status"), [(["rest"], 200), (["other", "rest"], 200), (["other"], 401), (None, 401)]
)
async def test_a_token_must_be_for_one_of_the_audiences(
    shown: list[str] | None, status: int
) -> None:
    """An authenticator that does not know audiences accepts tokens for any, and returns none."""
    async with reviewing(FakeClock(), "rest", "more") as (reviewer, reviews, _):
        reviews.audiences = shown
        assert await status_of(reviewer, "t") == status
        assert reviews.specs == [{"token": "t", "audiences": ["rest", "more"]}]


@pytest.mark.parametrize(
    "token",
    [
        "opaque",
        "a.b.c",
        "a..c",
        jwt([1]),
        jwt({}),
        jwt({"exp": None}),
        jwt({"exp": "soon"}),
        jwt({"exp": 1e300}),
        jwt({"exp": -1e300}),
        "a." + "e" * 5 + ".c",
        "a.é.c",
    ],
)
def test_what_is_no_jwt_with_an_expiration_has_none(token: str) -> None:
    assert jwt_expiration(token) is None


@given(st.text())
@settings(max_examples=examples(100))
def test_any_token_can_be_looked_at(token: str) -> None:
    jwt_expiration(token)
    jwt_expiration(f"a.{token}.c")


# Permissions.


async def test_permissions_and_denials_are_cached_for_some_seconds() -> None:
    clock = FakeClock()
    async with reviewing(clock) as (reviewer, reviews, _):
        for _ in range(3):
            await reviewer.authorize(ADA, LIST)
        assert len(reviews.specs) == 1
        reviews.allowed = False
        await clock.advance(auth.ALLOWED_TTL)
        for _ in range(3):
            with pytest.raises(ProblemError) as caught:
                await reviewer.authorize(ADA, LIST)
            assert caught.value.status == 403
        assert len(reviews.specs) == 2
        reviews.allowed = True
        await clock.advance(auth.DENIED_TTL)
        await reviewer.authorize(ADA, LIST)
        assert len(reviews.specs) == 3


async def test_different_questions_have_different_answers() -> None:
    questions = [
        (ADA, LIST),
        (UserInfo(username="ada"), LIST),
        (UserInfo(username="ada", groups=("builders",), extra={"a": ("b",)}), LIST),
        (ADA, AccessAttributes(verb="get", resource=JOBS, namespace="default")),
        (ADA, AccessAttributes(verb="list", resource=JOBS, namespace="")),
        (ADA, AccessAttributes(verb="list", resource=JOBS, namespace="default", name="n")),
        (ADA, AccessAttributes(verb="get", resource=PODS, namespace="default", subresource="log")),
    ]
    async with reviewing(FakeClock()) as (reviewer, reviews, _):
        await asyncio.gather(*(reviewer.authorize(*each) for each in questions * 3))
        assert len(reviews.specs) == len(questions)
    [log] = [each for each in reviews.specs if each["resourceAttributes"]["resource"] == "pods"]
    assert log["resourceAttributes"]["subresource"] == "log"


async def test_the_message_of_a_denial_names_what_is_denied() -> None:
    attributes = AccessAttributes(verb="get", resource=PODS, namespace="n", subresource="log")
    async with reviewing(FakeClock()) as (reviewer, reviews, _):
        reviews.allowed = False
        with pytest.raises(ProblemError, match="user 'ada' cannot get pods/log in namespace 'n'"):
            await reviewer.authorize(ADA, attributes)


# Callers.


@asynccontextmanager
async def calling(
    clock: FakeClock, **settings: Any
) -> AsyncIterator[tuple[Callable[..., Awaitable[int]], Reviews]]:
    """A function that authenticates a caller, and returns the status of the response."""
    async with reviewing(clock) as (reviewer, reviews, server), client_of(server) as client:
        callers = Callers(client, reviewer, SecuritySettings(**settings), clock=clock)

        async def call(
            token: str = "", *, source: str = "a", certificate: ClientCertificate | None = None
        ) -> int:
            header = f"Bearer {token}" if token else None
            try:
                await callers.authenticate(header, certificate=certificate, source=source)
            except ProblemError as problem:
                return problem.status
            return 200

        yield call, reviews


async def test_invalid_tokens_count_against_their_address_alone() -> None:
    clock = FakeClock()
    async with calling(clock, caller_rate=1) as (call, reviews):
        reviews.accepted = False
        assert [await call(f"bad-{each}") for each in range(5)] == [401, 401, 429, 429, 429]
        assert await call("bad-5", source="b") == 401
        assert len(reviews.specs) == 3
        await clock.advance(1)
        assert [await call(f"bad-{each}") for each in (6, 7)] == [401, 429]


async def test_valid_tokens_do_not_count_against_their_address() -> None:
    clock = FakeClock()
    async with calling(clock, caller_rate=1) as (call, _):
        for each in range(10):
            assert await call(f"good-{each}") == 200
            await clock.advance(1)  # all are of one user, whose own limit applies too


async def test_a_known_token_is_reviewed_again_during_a_flood() -> None:
    """Others at the same address, of an Ingress for instance, do not lock its user out."""
    clock = FakeClock()
    async with calling(clock, caller_rate=0.01) as (call, reviews):
        assert await call("known") == 200
        reviews.accepted = False
        assert [await call(f"bad-{each}") for each in range(2)] == [401, 429]
        reviews.accepted = True
        await clock.advance(auth.TOKEN_CACHE_TTL)
        for token, status in (("new", 429), ("known", 429)):
            assert await call(token) == status
        assert [each["token"] for each in reviews.specs] == ["known", "bad-0", "known"]


async def test_a_certificate_that_expires_during_the_connection_is_rejected() -> None:
    clock = FakeClock()
    certificate = ClientCertificate(user=ADA, expires_at=clock.now() + timedelta(seconds=5))
    async with calling(clock, impersonate=True) as (call, _):
        assert await call(certificate=certificate) == 200
        await clock.advance(5)
        assert await call(certificate=certificate) == 401


async def test_callers_cannot_be_impersonated_by_an_impersonated_account() -> None:
    credentials = Credentials(server="http://h", impersonate=(("Impersonate-User", "a"),))
    client, clock = Client(credentials, user_agent="tests"), FakeClock()
    reviewer = AccessReviewer(client, clock=clock)
    Callers(client, reviewer, SecuritySettings(), clock=clock)
    with pytest.raises(ConfigError, match="cannot impersonate"):
        Callers(client, reviewer, SecuritySettings(impersonate=True), clock=clock)


async def test_a_user_whose_name_a_header_cannot_contain_is_not_impersonated() -> None:
    clock = FakeClock()
    user = UserInfo(username="ada ", groups=())
    certificate = ClientCertificate(user=user, expires_at=clock.now() + timedelta(seconds=5))
    async with calling(clock, impersonate=True) as (call, _):
        assert await call(certificate=certificate) == 403


# The caches themselves.


def test_an_expiring_cache_is_bounded_and_forgets_the_oldest() -> None:
    cache: ExpiringCache[int, int] = ExpiringCache(3, FakeClock())
    for key in (1, 2, 3, 1, 4):
        cache.put(key, key, seconds=1)
    assert [cache.get(key) for key in range(5)] == [None, 1, None, 3, 4]
    assert len(cache) == 3


async def test_a_call_that_nobody_waits_for_is_cancelled() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    cancelled = asyncio.Event()

    async def call() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return 1

    waiting = [asyncio.create_task(flights.run("k", call)) for _ in range(2)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await cancelled.wait()

    async def succeed() -> int:
        return 2

    assert await flights.run("k", succeed) == 2


async def test_an_error_reaches_all_who_wait_and_nobody_after_them() -> None:
    flights: SingleFlight[str, int] = SingleFlight()

    async def fail() -> int:
        await asyncio.sleep(0)
        raise ValueError("once")

    found = await asyncio.gather(
        *(flights.run("k", fail) for _ in range(3)), return_exceptions=True
    )
    assert [str(each) for each in found] == ["once"] * 3

    async def succeed() -> int:
        return 2

    assert await flights.run("k", succeed) == 2
