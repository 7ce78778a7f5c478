"""Responses of the webhook server to API servers and other clients."""

import asyncio
import base64
import io
import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from support.admission import job, queue
from support.embedded_apiserver import EmbeddedServer, embedded_server

from batholith.admission import WEBHOOKS, AdmissionSettings, training, webhooks
from batholith.admission.resource_groups import ResourceGroup
from batholith.admission.serving.handler import AdmissionHandler
from batholith.admission.serving.object_reader import LOOKED_UP_RESOURCES, InformerReader
from batholith.admission.serving.server import MAX_BODY, ReviewServer
from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials
from batholith.kube.client.transport import ClientOptions
from batholith.local.apiserver.kinds.patches import json_patch
from batholith.machinery.serving_certificate import CertificateError, ServingCertificate
from batholith.machinery.x509 import CertificateRequest, CertKeyPair, create_ca, issue_certificate
from batholith.model import crds
from batholith.model.admission import AdmissionRequest, DeniedError, Webhook
from batholith.model.names import JOBS, NAMESPACES, PODGROUPS, PODS, QUEUES, TIME_LIMIT, Resource
from batholith.training_ctrl.frameworks import FRAMEWORKS

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WebhookClient:
    """A client of the server."""

    url: str
    handler: AdmissionHandler
    serving_certificate: ServingCertificate
    ca: CertKeyPair

    @property
    def ca_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.ca.certificate_pem.decode())

    async def send(
        self, path: str, body: bytes | Json, *, content_type: str = "application/json"
    ) -> tuple[int, Any]:
        """Return the status, and the JSON or text of the response."""
        raw = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        headers = {"Content-Type": content_type} if content_type else {}
        connector = aiohttp.TCPConnector(ssl=self.ca_context)
        async with (
            aiohttp.ClientSession(
                connector=connector, skip_auto_headers=["Content-Type"]
            ) as session,
            session.post(self.url + path, data=raw, headers=headers) as response,
        ):
            text = await response.text()
            return response.status, json.loads(text) if response.status == 200 else text

    async def review(self, path: str, request: Json) -> Json:
        """The response to a review."""
        status, body = await self.send(path, review(request))
        assert status == 200, body
        assert (body["apiVersion"], body["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        response: Json = body["response"]
        assert response["uid"] == request["uid"]
        return response


def review(request: Json) -> Json:
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def request(obj: Json, resource: Resource, *, operation: str = "CREATE", **more: Any) -> Json:
    metadata = obj["metadata"]
    gvr = {"group": resource.group, "version": resource.version, "resource": resource.plural}
    return {
        "uid": "e911857d-c318-11e8-bbad-025000000001",
        "kind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "resource": gvr,
        "operation": operation,
        "name": metadata["name"],
        "namespace": metadata.get("namespace", ""),
        "userInfo": {"username": "jane"},
        "object": None if operation == "DELETE" else obj,
        "oldObject": obj if operation == "DELETE" else None,
        "dryRun": False,
        "options": None,
    } | more


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with embedded_server(tmp_path, crds=crds.load()) as started:
        yield started


@asynccontextmanager
async def opened(*hooks: Webhook) -> AsyncIterator[WebhookClient]:
    """Run the webhook server without an API server: its informers are empty."""
    now, lasts = datetime.now(UTC), timedelta(days=1)
    authority = create_ca("tests", now=now, validity=lasts)
    async with unreachable_client() as client:
        handler, certificate = (
            AdmissionHandler(hooks or WEBHOOKS, empty_reader(client)),
            ServingCertificate(),
        )
        leaf = issue_leaf(authority)
        assert certificate.load(leaf.certificate_pem, leaf.key_pem)
        server = ReviewServer(handler, certificate, address="127.0.0.1", port=0)
        async with server.running() as url:
            yield WebhookClient(url, handler, certificate, authority)


def unreachable_client() -> Client:
    """Return a client of an unreachable API server."""
    return Client(
        Credentials(server="http://127.0.0.1:9"),
        user_agent="tests",
        options=ClientOptions(max_read_attempts=1),
    )


def empty_reader(client: Client) -> InformerReader:
    """Return a reader with empty informers, which lag behind any server."""
    return InformerReader(client, (QUEUES, NAMESPACES))


TRAINING = training.webhooks(AdmissionSettings(frameworks=FRAMEWORKS))


@pytest.mark.parametrize("hook", (*WEBHOOKS, *TRAINING), ids=lambda hook: hook.path)
def test_a_path_served_alone_has_informers_for_its_lookups(hook: Webhook) -> None:
    given: Json = {
        "Job": job(),
        "Queue": queue("q", parent="p"),
        "PodGroup": {"spec": {"queue": "q"}},
    }
    empty: Json = {"metadata": {"annotations": {TIME_LIMIT: "1h"}}, "spec": {}}
    for obj in (given.get(hook.resource.kind, empty), empty):
        reading = InformerReader(
            unreachable_client(), LOOKED_UP_RESOURCES.get(hook.path, ())
        ).recording()
        review = AdmissionRequest(
            operation="CREATE", namespace="ns", name="x", object=obj, old_object=None
        )
        with suppress(DeniedError):  # Other errors mean that an informer is missing.
            if hook.mutate:
                hook.mutate(review, reading)
            if hook.validate:
                hook.validate(review, reading)


def issue_leaf(ca: CertKeyPair) -> CertKeyPair:
    wanted = CertificateRequest(subject="x", validity=timedelta(days=1), hosts=("127.0.0.1",))
    return issue_certificate(ca, wanted, now=datetime.now(UTC))


@pytest.fixture
async def client() -> AsyncIterator[WebhookClient]:
    async with opened() as client:
        yield client


# -- reviews


async def test_defaults_are_returned_as_a_patch(client: WebhookClient) -> None:
    sent = job()
    response = await client.review("/jobs/mutate", request(sent, JOBS))
    assert (response["allowed"], response["patchType"]) == (True, "JSONPatch")
    stored = json_patch(sent, json.loads(base64.b64decode(response["patch"])))
    assert stored["spec"]["minAvailable"] == 1
    assert stored["spec"]["maxRetry"] == 3


def test_reviews_are_served_on_uvloop() -> None:
    """The event loop of the process."""

    async def talk() -> None:
        async with opened() as client:
            for _ in range(2):
                response = await client.review("/queues/validate", request(queue("a"), QUEUES))
                assert response["allowed"]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(talk())


async def test_a_complete_object_gets_no_patch(client: WebhookClient) -> None:
    first = await client.review("/jobs/mutate", request(job(), JOBS))
    full = json_patch(job(), json.loads(base64.b64decode(first["patch"])))
    again = await client.review("/jobs/mutate", request(full, JOBS))
    assert again == {"uid": again["uid"], "allowed": True}


async def test_a_denial_has_a_message_and_neither_code_nor_reason(client: WebhookClient) -> None:
    response = await client.review("/queues/validate", request(queue("a", parent="a"), QUEUES))
    assert response["allowed"] is False
    assert response["status"] == {"message": "queue a cannot use itself as parent"}


async def test_a_denial_is_logged_with_the_name_of_the_object(
    client: WebhookClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await client.review("/jobs/validate", request(job(queue="none"), JOBS))
    (line,) = [vars(line) for line in caplog.records if line.message == "denied"]
    assert line["job"] == "ns/j"


async def test_a_deletion_is_validated_by_the_old_object(client: WebhookClient) -> None:
    deletion = request(queue("default"), QUEUES, operation="DELETE")
    response = await client.review("/queues/validate", deletion)
    assert response["status"]["message"] == "`default` queue can not be deleted"


async def test_objects_missing_from_informers_are_read_from_the_server(
    server: EmbeddedServer,
) -> None:
    await server.create(QUEUES.path(), queue("fresh") | {"apiVersion": QUEUES.api_version})
    space = {"name": "ns", "annotations": {"scheduling.volcano.sh/queue-name": "fresh"}}
    await server.create(NAMESPACES.path(), {"metadata": space})
    sent = {"metadata": {"name": "g", "namespace": "ns"}, "spec": {"queue": "default"}}
    asked = request(sent, PODGROUPS)
    async with server.client() as client:
        handler = AdmissionHandler(WEBHOOKS, empty_reader(client))
        result = await handler.handle("/podgroups/mutate", review(asked))
        patched = json_patch(sent, json.loads(base64.b64decode(result["response"]["patch"])))
        assert patched["spec"]["queue"] == "fresh"
        result = await handler.handle("/podgroups/validate", review(request(patched, PODGROUPS)))
        assert result["response"]["allowed"] is True
        child = request(queue("child", parent="fresh"), QUEUES)
        result = await handler.handle("/queues/validate", review(child))
        assert result["response"]["allowed"] is True


async def test_without_a_response_of_the_server_the_informers_decide(client: WebhookClient) -> None:
    response = await client.review("/queues/validate", request(queue("c", parent="p"), QUEUES))
    assert "failed to get parent queue p" in response["status"]["message"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"resource": {"group": "batch", "version": "v1", "resource": "jobs"}}, "jobs of batch/v1"),
        ({"resource": {"group": "", "version": "v1", "resource": "pods"}}, "pods of core/v1"),
        ({"subResource": "status"}, "not jobs/status of"),
        ({"operation": "DELETE"}, "unexpected operation DELETE"),
        ({"operation": "CONNECT"}, "unexpected operation CONNECT"),
    ],
)
async def test_requests_that_a_path_does_not_handle_are_denied(
    client: WebhookClient, change: Json, expected: str
) -> None:
    """A wrong webhook configuration must not disable validation."""
    response = await client.review("/jobs/validate", request(job(), JOBS) | change)
    assert response["allowed"] is False
    assert expected in response["status"]["message"]


async def test_o22_a_wrong_type_is_left_to_the_schema_or_reported_with_its_path(
    client: WebhookClient,
) -> None:
    wrong = job(minAvailable="two")
    assert (await client.review("/jobs/mutate", request(wrong, JOBS)))["allowed"] is True
    response = await client.review("/jobs/validate", request(wrong, JOBS))
    assert response["status"]["message"] == "spec.minAvailable: Expected int, got str"


async def test_rules_can_be_replaced_while_serving(client: WebhookClient) -> None:
    pod = {"metadata": {"name": "p", "namespace": "ns"}, "spec": {}}
    asked = request(pod, PODS)
    assert "patch" not in await client.review("/pods/mutate", asked)
    group = ResourceGroup(namespaces=frozenset({"ns"}), scheduler_name="volcano")
    client.handler.set_webhooks(webhooks(AdmissionSettings(resource_groups=(group,))))
    assert "patch" in await client.review("/pods/mutate", asked)


# -- malformed requests


def deep() -> bytes:
    return b'{"a":' * 100_000


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'"\xff"', "not JSON"),
        (deep(), "not JSON"),
        (b"[]", "not an AdmissionReview"),
        (b"null", "not an AdmissionReview"),
        (b"{}", "not an AdmissionReview"),
        ({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}, "`request`"),
        (review({}), "`uid`"),
        (review({"uid": "1", "operation": 3, "resource": {}}), "$.request.operation"),
        (review(request(job(), JOBS)) | {"kind": "Pod"}, "got Pod"),
        (
            review(request(job(), JOBS)) | {"apiVersion": "admission.k8s.io/v1beta1"},
            "expected apiVersion",
        ),
    ],
    ids=lambda value: str(value)[:24],
)
async def test_o6_a_malformed_review_gets_400_with_the_reason(
    client: WebhookClient, body: bytes | Json, expected: str
) -> None:
    status, text = await client.send("/jobs/validate", body)
    assert (status, expected in text) == (400, True), text
    assert (await client.review("/jobs/validate", request(job(), JOBS)))["uid"], "still serving"


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/yaml"])
async def test_another_content_type_gets_415(client: WebhookClient, content_type: str) -> None:
    status, text = await client.send("/jobs/validate", b"{}", content_type=content_type)
    assert (status, "expected application/json" in text) == (415, True)


@pytest.mark.parametrize("path", ["/", "/jobs", "/jobs/validate/", "/hypernodes/mutate", "/x"])
async def test_an_unknown_path_gets_404_and_allows_nothing(
    client: WebhookClient, path: str
) -> None:
    status, text = await client.send(path, review(request(job(), JOBS)))
    assert (status, path in text) == (404, True)


async def test_a_query_does_not_hide_the_path(client: WebhookClient) -> None:
    status, _ = await client.send("/jobs/mutate?timeout=10s", review(request(job(), JOBS)))
    assert status == 200


def padded(size: int) -> bytes:
    empty = review(request(job(pad=""), JOBS))
    missing = size - len(json.dumps(empty).encode())
    return json.dumps(review(request(job(pad="x" * missing), JOBS))).encode()


async def test_bodies_are_limited_to_three_mebibytes(client: WebhookClient) -> None:
    assert (await client.send("/jobs/mutate", padded(MAX_BODY)))[0] == 200
    assert (await client.send("/jobs/mutate", padded(MAX_BODY + 1)))[0] == 413


async def test_other_methods_are_rejected(client: WebhookClient) -> None:
    connector = aiohttp.TCPConnector(ssl=client.ca_context)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"{client.url}/jobs/mutate") as response,
    ):
        assert response.status == 405


# -- certificates


async def test_open_connections_survive_a_certificate_rotation(client: WebhookClient) -> None:
    connector = aiohttp.TCPConnector(ssl=client.ca_context, limit=1)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def answered() -> int:
            body = review(request(job(), JOBS))
            async with session.post(f"{client.url}/jobs/mutate", json=body) as response:
                return response.status

        assert await answered() == 200
        other_ca = create_ca("other", now=datetime.now(UTC), validity=timedelta(days=1))
        leaf = issue_leaf(other_ca)
        assert client.serving_certificate.load(leaf.certificate_pem, leaf.key_pem)
        assert await answered() == 200, "on the connection that is open"
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await client.send("/jobs/mutate", b"{}")


async def test_a_mismatched_key_is_rejected_and_the_old_certificate_is_kept(
    client: WebhookClient,
) -> None:
    one, other = issue_leaf(client.ca), issue_leaf(client.ca)
    with pytest.raises(CertificateError, match="cannot load certificate and key"):
        client.serving_certificate.load(one.certificate_pem, other.key_pem)
    assert (await client.send("/x", b"{}"))[0] == 404


async def test_tls_below_1_2_is_rejected(client: WebhookClient) -> None:
    assert client.serving_certificate.context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert all(
        "GCM" in each["name"] or "TLS_" in each["name"]
        for each in ciphers(client.serving_certificate)
    )


def ciphers(serving_certificate: ServingCertificate) -> list[Any]:
    return list(serving_certificate.context.get_ciphers())
