"""A SubjectAccessReview has all attributes of the authenticated user."""

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from support.authorization import authorizer_without_roles

from batholith.api.identity.reviewer import AccessAttributes, AccessReviewer
from batholith.api.problems import ProblemError
from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials
from batholith.local.apiserver.authorization.reviews import review
from batholith.local.apiserver.http.auth import ANONYMOUS, Authenticator, User
from batholith.machinery.clock import SystemClock
from batholith.model.names import JOBS, TOKENREVIEWS

POD = "authentication.kubernetes.io/pod-name"
ADA = User(name="ada", uid="u-1", groups=("builders",), extra={POD: ("ci-0",), "example.org/n": ()})
ATTRIBUTES = AccessAttributes(verb="list", resource=JOBS, namespace="default")


class NoServiceAccounts:
    """A cluster that has issued no tokens."""

    def authenticate(self, token: str, audiences: Collection[str]) -> tuple[User, list[str]] | None:
        return None


@asynccontextmanager
async def access_reviewer(
    allowed: Mapping[str, Any], user: User = ADA
) -> AsyncIterator[AccessReviewer]:
    """A reviewer on a cluster whose authorizer allows users with the attributes *allowed*."""
    known = Authenticator({"token": user}, NoServiceAccounts())

    async def serve_review(request: web.Request) -> web.Response:
        body = await request.json()
        if body["kind"] == "TokenReview":
            found = review(
                TOKENREVIEWS,
                body,
                namespace="",
                user=ANONYMOUS,
                authenticator=known,
                authorizer=authorizer_without_roles(),
            )
            return web.json_response(found, status=201)
        shown = body["spec"]
        may = all(shown.get(key) == value for key, value in allowed.items())
        return web.json_response({**body, "status": {"allowed": may}}, status=201)

    app = web.Application()
    app.router.add_post("/{path:.*}", serve_review)
    async with TestServer(app) as server:
        credentials = Credentials(server=str(server.make_url("")).rstrip("/"))
        async with Client(credentials, user_agent="tests") as client:
            yield AccessReviewer(client, clock=SystemClock())


@pytest.mark.parametrize(
    "allowed",
    [
        {"user": "ada"},
        {"uid": "u-1"},
        {"groups": ["builders", "system:authenticated"]},
        {"extra": {POD: ["ci-0"], "example.org/n": []}},
    ],
    ids=["user", "uid", "groups", "extra"],
)
async def test_access_reviews_include_all_attributes_of_the_token_review(
    allowed: Mapping[str, Any],
) -> None:
    async with access_reviewer(allowed) as there:
        await there.authorize((await there.authenticate("token")).user, ATTRIBUTES)


async def test_users_with_other_attributes_are_denied() -> None:
    async with access_reviewer({"extra": {POD: ["ci-1"]}}) as there:
        with pytest.raises(ProblemError) as caught:
            await there.authorize((await there.authenticate("token")).user, ATTRIBUTES)
        assert caught.value.status == 403


async def test_user_whose_name_has_a_nul_character_is_rejected() -> None:
    """PostgreSQL cannot store the name."""
    async with access_reviewer({}, User(name="a\0da", uid="", groups=())) as there:
        with pytest.raises(ProblemError) as caught:
            await there.authenticate("token")
    assert caught.value.status == 401
