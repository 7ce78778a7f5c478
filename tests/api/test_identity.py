"""Callers of the REST API: their credentials, their identity at the API server, their limits."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID
from support.client_certificates import ClientSubject, client_context, der, issue
from support.controller_api import ControllerApi
from support.rest import controller_api_with_cronjob, running_api, sqlite

from batholith.api.identity.authentication import SecuritySettings
from batholith.api.identity.client_certificates import ClientCaError, parse_client_certificate
from batholith.api.serving.server import ApiSettings, serve
from batholith.local.apiserver.authorization.bootstrap_policy import RESOURCES
from batholith.local.apiserver.http.auth import AUDIENCE
from batholith.machinery.clock import SystemClock
from batholith.machinery.serving_certificate import KeyPairFiles
from batholith.machinery.x509 import CertificateRequest, CertKeyPair, create_ca, issue_certificate
from batholith.model.names import JOBS
from batholith.testing import RecordedRequest, RequestMatcher

PATH = "/v1/namespaces/default/cronjobs"
CREATE = f"{PATH}/report/jobs"
DENIED = 'users "jane" is forbidden: User "api" cannot impersonate resource "users" in API group ""'


@dataclass
class Caller:
    """A client of the REST API."""

    api: ControllerApi
    session: aiohttp.ClientSession

    async def call(self, method: str, path: str, token: str = "", **more: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers |= more.pop("headers", {})
        async with self.session.request(method, path, headers=headers, **more) as response:
            return response.status, await response.json()

    def token(self, user: str) -> str:
        return self.api.credentials_of(user).token

    def requests_on(self, resource: str, verb: str) -> Sequence[RecordedRequest]:
        return [
            each
            for each in self.api.faults.requests
            if (each.resource, each.verb) == (resource, verb) and each.user_agent == "rest"
        ]


@contextlib.asynccontextmanager
async def rest(tmp_path: Path, security: SecuritySettings) -> AsyncIterator[Caller]:
    async with (
        controller_api_with_cronjob() as (api, client),
        running_api(client, sqlite(tmp_path), security=security) as url,
        aiohttp.ClientSession(url) as session,
    ):
        yield Caller(api, session)


# Bearer tokens.


async def test_nothing_is_served_without_a_valid_token(tmp_path: Path) -> None:
    """Unknown paths and malformed bodies are not distinguished."""
    async with rest(tmp_path, SecuritySettings()) as caller:
        for method, path in (("GET", PATH), ("GET", "/v1/none"), ("PUT", PATH), ("GET", "/v1")):
            for header in ("", "Bearer ", "Basic YTpi", "Bearer wrong", "Bearer a b", "Bearer ü"):
                headers = {"Authorization": header} if header else {}
                status, _ = await caller.call(method, path, headers=headers, data=b"{")
                assert status == 401, (path, header)
        async with caller.session.get("/healthz") as response:
            assert response.status == 200
        assert caller.api.created(JOBS) == 0


async def test_the_api_servers_rejection_of_the_token_is_401(tmp_path: Path) -> None:
    """The token expired after it was reviewed."""
    async with rest(tmp_path, SecuritySettings()) as caller:
        caller.api.faults.error(RequestMatcher("create", JOBS), 401)
        status, problem = await caller.call("POST", CREATE, caller.token("admin"))
        assert (status, problem["detail"]) == (401, "the cluster rejects this token")


async def test_a_caller_cannot_impersonate(tmp_path: Path) -> None:
    """The header would be ignored, and the request sent with the caller's own rights."""
    async with rest(tmp_path, SecuritySettings()) as caller:
        headers = {"Impersonate-User": "jane"}
        status, problem = await caller.call("POST", CREATE, caller.token("admin"), headers=headers)
        assert (status, problem["detail"]) == (
            403,
            "cannot impersonate over REST (header Impersonate-User)",
        )
        assert caller.api.created(JOBS) == 0


# Impersonation.


async def test_a_caller_with_a_token_for_another_audience_is_impersonated(tmp_path: Path) -> None:
    security = SecuritySettings(audiences=(AUDIENCE,), impersonate=True)
    async with rest(tmp_path, security) as caller:
        status, _ = await caller.call("POST", CREATE, caller.token("admin"))
        assert status == 201
        [review] = caller.requests_on("tokenreviews", "create")
        assert review.json()["spec"]["audiences"] == [AUDIENCE]
        [created] = caller.requests_on("jobs", "create")
        shown = {key: text for key, text in created.headers.items() if key.startswith("imp")}
        assert shown == {
            "impersonate-user": "admin",
            "impersonate-uid": "admin",
            "impersonate-group": "system:masters\nsystem:authenticated",
        }
        assert created.headers["authorization"] == f"Bearer {caller.token('api')}"


async def test_a_token_for_another_audience_is_rejected(tmp_path: Path) -> None:
    security = SecuritySettings(audiences=("elsewhere",), impersonate=True)
    async with rest(tmp_path, security) as caller:
        assert (await caller.call("POST", CREATE, caller.token("admin")))[0] == 401


async def test_without_impersonation_such_callers_are_rejected(tmp_path: Path) -> None:
    """Never served as our own account."""
    async with rest(tmp_path, SecuritySettings(audiences=(AUDIENCE,))) as caller:
        for method, path in (("GET", PATH), ("POST", CREATE)):
            status, problem = await caller.call(method, path, caller.token("admin"))
            assert status == 403
            assert "impersonation is off" in problem["detail"]
        assert caller.api.created(JOBS) == 0
        assert not caller.requests_on("cronjobs", "list")


@pytest.mark.parametrize(
    "message",
    [
        DENIED,
        'jobs.batch.volcano.sh is forbidden: User "api" cannot impersonate-on:user-info:create '
        'resource "jobs" in API group "batch.volcano.sh" in the namespace "default"',
    ],
)
async def test_a_missing_right_to_impersonate_is_not_the_callers_fault(
    tmp_path: Path, message: str
) -> None:
    security = SecuritySettings(audiences=(AUDIENCE,), impersonate=True)
    async with rest(tmp_path, security) as caller:
        caller.api.faults.error(RequestMatcher("create", JOBS), 403, message=message)
        status, problem = await caller.call("POST", CREATE, caller.token("admin"))
        assert status == 502
        assert problem["detail"].startswith("the REST API may not impersonate callers: ")


# Client certificates.


@dataclass
class TlsCaller(Caller):
    """Callers of a REST API with client certificates."""

    server_ca: CertKeyPair
    client_ca: CertKeyPair
    url: str
    directory: Path

    async def call_as(
        self, subject: ClientSubject | None, *, ca: CertKeyPair | None = None, token: str = ""
    ) -> tuple[int, Any]:
        """Create a job with a certificate of *subject*."""
        pair = issue(ca or self.client_ca, subject) if subject is not None else None
        context = client_context(self.server_ca.certificate_pem, pair, self.directory)
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(self.url, connector=connector) as session:
            return await replace(self, session=session).call("POST", CREATE, token)


@contextlib.asynccontextmanager
async def tls_rest(directory: Path, security: SecuritySettings) -> AsyncIterator[TlsCaller]:
    now, day = datetime.now(UTC), timedelta(days=1)
    server_ca, client_ca = (create_ca(name, now=now, validity=day) for name in ("s", "c"))
    request = CertificateRequest(subject="rest", validity=day, hosts=("127.0.0.1",))
    pair = issue_certificate(server_ca, request, now=now)
    files = KeyPairFiles(certificate=directory / "tls.crt", key=directory / "tls.key")
    for path, content in (
        (files.certificate, pair.certificate_pem),
        (files.key, pair.key_pem),
        (directory / "clients.crt", client_ca.certificate_pem),
    ):
        path.write_bytes(content)
    listener = socket.create_server(("127.0.0.1", 0))
    settings = ApiSettings(
        store_url=sqlite(directory),
        listener=listener,
        certificate=files,
        security=replace(security, client_ca_file=directory / "clients.crt"),
    )
    async with controller_api_with_cronjob() as (api, client), aiohttp.ClientSession() as unused:
        ready = asyncio.Event()
        serving = asyncio.create_task(serve(client, settings, clock=SystemClock(), ready=ready))
        try:
            await ready.wait()
            url = f"https://127.0.0.1:{listener.getsockname()[1]}"
            yield TlsCaller(api, unused, server_ca, client_ca, url, directory)
        finally:
            serving.cancel()
            await asyncio.wait((serving,))


def cluster_admins(group: str) -> dict[str, Any]:
    """A binding of the members of a group to the role of the cluster's administrators."""
    kind = {"apiGroup": "rbac.authorization.k8s.io"}
    return {
        "metadata": {"name": group},
        "roleRef": {**kind, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{**kind, "kind": "Group", "name": group}],
    }


async def test_a_caller_with_a_client_certificate_is_impersonated(tmp_path: Path) -> None:
    async with tls_rest(tmp_path, SecuritySettings(impersonate=True)) as caller:
        await caller.api.create(RESOURCES[1], cluster_admins("builders"))
        subject = ClientSubject(names=("ada",), organizations=("builders", "ci"))
        assert (await caller.call_as(subject))[0] == 201
        [created] = caller.requests_on("jobs", "create")
        assert created.headers["impersonate-user"] == "ada"
        assert created.headers["impersonate-group"] == "builders\nci\nsystem:authenticated"
        assert not caller.requests_on("tokenreviews", "create")


async def test_certificates_that_name_no_user_or_are_not_for_clients_are_rejected(
    tmp_path: Path,
) -> None:
    async with tls_rest(tmp_path, SecuritySettings(impersonate=True)) as caller:
        assert (await caller.call_as(None))[0] == 401
        assert (await caller.call_as(ClientSubject(names=(), organizations=("a",))))[0] == 401
        for subject, ca in (
            (ClientSubject(), caller.server_ca),
            (ClientSubject(usage=ExtendedKeyUsageOID.SERVER_AUTH), None),
            (ClientSubject(validity=timedelta(seconds=-60)), None),
        ):
            with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
                await caller.call_as(subject, ca=ca)
        assert caller.api.created(JOBS) == 0


async def test_a_bearer_token_takes_precedence_over_the_certificate(tmp_path: Path) -> None:
    async with tls_rest(tmp_path, SecuritySettings(impersonate=True)) as caller:
        assert (await caller.call_as(ClientSubject(), token=caller.token("admin")))[0] == 201
        [created] = caller.requests_on("jobs", "create")
        assert created.headers["authorization"] == f"Bearer {caller.token('admin')}"
        assert "impersonate-user" not in created.headers
        assert (await caller.call_as(ClientSubject(), token="wrong"))[0] == 401


async def test_without_impersonation_certificates_are_rejected(tmp_path: Path) -> None:
    async with tls_rest(tmp_path, SecuritySettings()) as caller:
        status, problem = await caller.call_as(ClientSubject())
        assert status == 403
        assert "a client certificate" in problem["detail"]
        assert caller.api.created(JOBS) == 0


def test_the_user_of_a_certificate_is_that_of_kube_apiserver() -> None:
    """The last common name, and the organizations in their order."""
    ca = create_ca("c", now=datetime.now(UTC), validity=timedelta(days=1))
    subject = ClientSubject(names=("a", "b"), organizations=("y", "system:authenticated", "x"))
    pair = issue(ca, subject)
    found = parse_client_certificate(der(pair))
    assert found.user.username == "b"
    assert found.user.groups == ("y", "system:authenticated", "x")
    assert found.expires_at == pair.certificate.not_valid_after_utc


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
async def test_authorities_that_cannot_be_loaded_are_an_error_at_start(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "ca.crt"
    if content is not None:
        path.write_bytes(content)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = ApiSettings(
            store_url=sqlite(tmp_path),
            listener=listener,
            security=SecuritySettings(client_ca_file=path),
        )
        async with controller_api_with_cronjob() as (_, client):
            with pytest.raises(ClientCaError, match="--client-ca-file"):
                await serve(client, settings, clock=SystemClock())


# Limits.


async def test_each_caller_has_its_own_rate(tmp_path: Path) -> None:
    async with rest(tmp_path, SecuritySettings(caller_rate=0.01)) as caller:
        assert (await caller.call("GET", PATH, caller.token("admin")))[0] == 200
        headers = {"Authorization": f"Bearer {caller.token('admin')}"}
        async with caller.session.get(PATH, headers=headers) as response:
            assert response.status == 429
            assert 0 < int(response.headers["Retry-After"]) <= 100
            assert response.content_type == "application/problem+json"
        assert (await caller.call("GET", PATH, caller.token("controllers")))[0] == 200
        assert len(caller.requests_on("cronjobs", "list")) == 2


async def test_invalid_tokens_do_not_flood_the_api_server(tmp_path: Path) -> None:
    async with rest(tmp_path, SecuritySettings(caller_rate=0.5)) as caller:
        admin = caller.token("admin")
        assert (await caller.call("GET", PATH, admin))[0] == 200
        statuses = [(await caller.call("GET", PATH, f"wrong-{each}"))[0] for each in range(20)]
        assert set(statuses) == {401, 429}
        assert statuses.count(401) <= 3
        reviews = caller.requests_on("tokenreviews", "create")
        assert len(reviews) == 1 + statuses.count(401)
        assert (await caller.call("GET", PATH, "wrong-0"))[0] == 401  # from the cache
