"""What a caller must be allowed to do for the usage, and which kinds of jobs it sees."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest

from batholith.api.identity.caller import AuthenticatedCaller
from batholith.api.identity.reviewer import AccessAttributes, UserInfo
from batholith.api.problems import ProblemError
from batholith.api.routes.dependencies import AppState
from batholith.api.routes.history import allowed_kinds
from batholith.api.routes.usage import required_attributes, usage_interval
from batholith.model.names import JOBS, QUEUES
from batholith.store.usage import UsageQuery

NOON = datetime(2026, 1, 2, 12, 30, tzinfo=UTC)
ALL_JOBS = AccessAttributes(verb="list", resource=JOBS, namespace="")


def caller() -> AuthenticatedCaller:
    return AuthenticatedCaller(user=UserInfo(username="ada"), client=cast(Any, None))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"by": "queue"}, AccessAttributes(verb="list", resource=QUEUES, namespace="")),
        (
            {"by": "queue", "queue": "q"},
            AccessAttributes(verb="get", resource=QUEUES, namespace="", name="q"),
        ),
        ({"by": "queue", "queue": "q", "user": "eve"}, ALL_JOBS),
        ({"by": "user"}, ALL_JOBS),
        ({"by": "user", "queue": "q"}, ALL_JOBS),
        ({"by": "user", "user": "eve"}, ALL_JOBS),
        ({"by": "user", "user": "ada"}, None),
        ({"by": "namespace", "user": "ada"}, None),
        ({"by": "account"}, ALL_JOBS),
        ({"by": "queue", "queue": "q", "account": "physics"}, ALL_JOBS),
        ({"by": "account", "user": "ada", "account": "physics"}, None),
        ({"by": "namespace"}, ALL_JOBS),
        (
            {"by": "user", "namespace": "n", "user": "eve"},
            AccessAttributes(verb="list", resource=JOBS, namespace="n"),
        ),
    ],
)
def test_usage_requires_what_would_show_its_jobs(
    query: dict[str, Any], expected: AccessAttributes | None
) -> None:
    found = UsageQuery(start=NOON, end=NOON, step=3600, **query)
    assert required_attributes(found, caller()) == expected


def test_intervals_are_multiples_of_the_step() -> None:
    hour = timedelta(hours=1)
    noon = NOON.replace(minute=0)
    assert usage_interval(None, None, 3600, NOON) == (noon - 24 * hour, noon + hour)
    assert usage_interval(noon, noon + hour, 3600, NOON) == (noon, noon + hour)
    with pytest.raises(ProblemError):
        usage_interval(noon, noon, 3600, NOON)


class Reviewer:
    """Allows some resources."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = allowed

    async def authorize(self, user: UserInfo, attributes: AccessAttributes) -> None:
        resource = attributes.resource
        if f"{resource.plural}.{resource.group}" not in self.allowed:
            raise ProblemError(403, "no")


class State(msgspec.Struct):
    reviewer: Reviewer


async def test_a_caller_sees_the_kinds_that_it_may_list() -> None:
    state = cast(AppState, State(Reviewer("jobs.batch", "tfjobs.kubeflow.org")))
    assert await allowed_kinds(state, caller(), (), "n") == ("batchjobs", "tfjobs")
    assert await allowed_kinds(state, caller(), ("tfjobs", "jobs"), "n") == ("tfjobs",)
    with pytest.raises(ProblemError):
        await allowed_kinds(state, caller(), ("jobs",), "n")
