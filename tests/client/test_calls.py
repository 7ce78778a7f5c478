"""Retries, deadlines, credentials and errors of single calls, without I/O."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from support.operation_script import LOST, REFUSED, Script, reply

from batholith.client import (
    ApiError,
    ConflictError,
    DeadlineError,
    InvalidError,
    NotFoundError,
    RateLimitedError,
    Retries,
    UnauthorizedError,
    UnavailableError,
    UnexpectedResponseError,
    UnreachableError,
)
from batholith.client.calls import call, send_call
from batholith.client.effects import Reply, Secret, TransportError
from batholith.client.operations.jobs import delete
from batholith.client.operations.scopes import Collection, Server
from batholith.client.requests import ApiRequest, get, path, post

GET = get("/v1/jobs")
POST = post("/v1/jobs", {"a": 1})


def run(script: Script, request: ApiRequest = GET, **session: Any) -> Any:
    return script.run(call(script.session(**session), request, dict[str, Any]))


@pytest.mark.parametrize("failure", [LOST, REFUSED, reply(429), reply(502), reply(503), reply(504)])
def test_failures_that_may_pass_are_retried_with_backoff(failure: Reply | TransportError) -> None:
    script = Script([failure, failure, failure, reply(200, {"ok": 1})])
    assert run(script) == {"ok": 1}
    assert script.sleeps == [0.5, 1.0, 2.0]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 412, 413, 422, 500])
def test_rejections_are_not_retried(status: int) -> None:
    script = Script([reply(status)])
    with pytest.raises(ApiError) as caught:
        run(script)
    assert (caught.value.status, script.sleeps) == (status, [])


def test_retry_after_is_a_lower_bound() -> None:
    script = Script([reply(429, retry_after="3"), reply(503, retry_after="2"), reply(200, {})])
    run(script)
    assert script.sleeps == [3.5, 3.0]


def test_a_post_has_the_same_key_in_all_attempts() -> None:
    script = Script([LOST, reply(503), reply(409, retry_after="1"), reply(201, {})])
    run(script, POST)
    keys = {request.headers["idempotency-key"] for request in script.requests}
    assert (len(script.requests), len(keys)) == (4, 1)


def test_two_posts_have_different_keys() -> None:
    assert post("/v1/jobs", {}).idempotency_key != post("/v1/jobs", {}).idempotency_key


def test_a_conflict_without_retry_after_is_final() -> None:
    body = {"status": 409, "detail": "finished", "allowed_phases": ["Running", "Pending"]}
    with pytest.raises(ConflictError) as caught:
        run(Script([reply(409, body)]), POST)
    assert caught.value.allowed_phases == ("Running", "Pending")


def test_the_last_failure_is_raised_after_all_attempts() -> None:
    script = Script([LOST] * 3)
    with pytest.raises(UnreachableError, match="cannot reach https://api: the connection"):
        run(script, retries=Retries(attempts=3))
    script = Script([reply(503)] * 2)
    with pytest.raises(UnavailableError):
        run(script, retries=Retries(attempts=2))


def test_each_further_attempt_is_announced_with_the_failure_before_it() -> None:
    seen: list[tuple[type[Exception], float]] = []
    retries = Retries(
        attempts=3, on_retry=lambda failure, delay: seen.append((type(failure), delay))
    )
    script = Script([reply(503), LOST, reply(503)])
    with pytest.raises(UnavailableError):
        run(script, retries=retries)
    assert [each for each, _ in seen] == [UnavailableError, UnreachableError]
    assert [delay for _, delay in seen] == script.sleeps


def test_no_retry_begins_after_the_deadline() -> None:
    script = Script([LOST] * 100)
    with pytest.raises(DeadlineError) as caught:
        run(script, timeout=2.0)
    assert isinstance(caught.value, TimeoutError)
    assert script.sleeps == [0.5, 1.0]
    assert script.timeouts == [2.0, 1.5, 0.5]


def test_a_retry_after_beyond_the_deadline_is_reported_at_once() -> None:
    script = Script([reply(429, retry_after="600")])
    with pytest.raises(RateLimitedError) as caught:
        run(script)
    assert (caught.value.retry_after, script.sleeps) == (600.0, [])


def test_a_response_that_is_held_back_has_more_time() -> None:
    script = Script([reply(200, {})])
    run(script, post("/v1/x", {}, hold=60.0), timeout=5.0)
    assert script.timeouts == [65.0]


class RotatedToken:
    """A token that changes when it is rejected."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)

    def current(self) -> Secret:
        return Secret(f"Bearer {self.tokens[0]}")

    def fetch(self) -> Secret:
        return self.current()

    def invalidate(self, rejected: Secret) -> bool:
        if rejected == self.current() and len(self.tokens) > 1:
            del self.tokens[0]
        return True


def test_a_rejected_token_is_fetched_again_once() -> None:
    script = Script([reply(401), reply(200, {})])
    run(script, credentials=RotatedToken("old", "new"))
    sent = [request.authorization.reveal() for request in script.requests]
    assert (sent, script.sleeps) == (["Bearer old", "Bearer new"], [])
    script = Script([reply(401), reply(401)])
    with pytest.raises(UnauthorizedError):
        run(script, credentials=RotatedToken("a", "b", "c"))


def test_redirects_are_not_followed() -> None:
    script = Script([Reply(307, {"location": "https://other/"})])
    with pytest.raises(UnexpectedResponseError, match="redirects"):
        run(script)
    assert len(script.requests) == 1


def test_errors_of_a_proxy_are_reported_with_their_text() -> None:
    page = Reply(403, {"content-type": "text/html"}, b"<h1>blocked</h1>")
    with pytest.raises(ApiError, match="blocked"):
        run(Script([page]))


def test_a_body_of_another_type_is_reported() -> None:
    with pytest.raises(UnexpectedResponseError, match="cannot decode"):
        run(Script([Reply(200, {}, b"<html>")]))


def test_invalid_fields_are_listed() -> None:
    errors = [{"field": "spec.queue", "message": "not found"}]
    body = {"status": 422, "title": "t", "detail": "d", "errors": errors}
    with pytest.raises(InvalidError) as caught:
        run(Script([reply(422, body)]), POST)
    assert caught.value.fields == {"spec.queue": "not found"}


def test_errors_have_the_fields_of_the_problem_document() -> None:
    with pytest.raises(NotFoundError) as caught:
        run(Script([reply(404, {"title": "Not Found", "detail": "no job", "later": 1})]))
    assert str(caught.value) == "404 Not Found: no job"


def test_secrets_are_in_no_repr_and_no_error() -> None:
    script = Script([LOST])
    with pytest.raises(UnreachableError) as caught:
        run(script, retries=Retries(attempts=1))
    assert "secret" not in repr(script.requests) + repr(caught.value) + str(caught.value)
    assert script.requests[0].authorization.reveal() == "Bearer secret"


def test_names_in_paths_are_quoted() -> None:
    assert path("a/b", "ü ?", query={"x": "1&2", "y": None, "z": ["a", "b"]}) == (
        "/v1/a%2Fb/%C3%BC%20%3F?x=1%262&z=a&z=b"
    )


def test_a_lost_response_is_recorded() -> None:
    script = Script([REFUSED, LOST, reply(404)])
    result = script.run(send_call(script.session(), GET))
    assert (result.reply.status, result.lost) == (404, True)
    script = Script([REFUSED, reply(404)])
    assert not script.run(send_call(script.session(), GET)).lost


def test_fields_of_later_servers_are_ignored() -> None:
    from batholith.client import JobSummary

    body = {"namespace": "a", "name": "b", "invented": {"x": 1}, "phase": "Hibernating"}
    found = msgspec.json.decode(msgspec.json.encode(body), type=JobSummary)
    assert (found.phase, found.is_finished) == ("Hibernating", False)


def test_warnings_of_the_server_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    text = r'299 - "no \"x\" here", 299 - "other"'
    run(Script([reply(201, {}, warning=text)]), POST)
    assert [record.getMessage() for record in caplog.records] == [
        'warning of the server: no "x" here',
        "warning of the server: other",
    ]


JOB = {"namespace": "default", "name": "a", "uid": "1", "deleting": True}


@pytest.mark.parametrize(
    ("found", "methods", "result"),
    [
        (reply(404), ["DELETE", "GET"], None),
        (reply(200, JOB | {"uid": "2"}), ["DELETE", "GET"], None),
        (reply(200, JOB), ["DELETE", "GET", "DELETE"], "1"),
    ],
)
def test_a_deletion_is_repeated_only_while_the_same_job_exists(
    found: Reply, methods: list[str], result: str | None
) -> None:
    script = Script([LOST, found, reply(202, JOB)])
    job = replace(Collection(Server(script.session()), "jobs").ref("a"), uid="1")
    deleted = script.run(delete(job))
    assert [request.method for request in script.requests] == methods
    assert (deleted.uid if deleted else None) == result
