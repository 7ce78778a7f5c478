"""What API servers, and others who find the port, get from the webhook server."""

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
from support.polling import wait_for

from batholith.admission import WEBHOOKS, AdmissionSettings, webhooks
from batholith.admission.resource_groups import ResourceGroup
from batholith.admission.serving.handler import AdmissionHandler
from batholith.admission.serving.object_reader import LOOKED_UP_RESOURCES, InformerReader
from batholith.admission.serving.server import MAX_BODY, ReviewServer, serve_until_exit
from batholith.apiserver.verbs.patches import json_patch
from batholith.httpserver.metrics import ListenerMetrics
from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials
from batholith.machinery.serving_certificate import CertificateError, ServingCertificate
from batholith.machinery.x509 import CertificateRequest, CertKeyPair, create_ca, issue_certificate
from batholith.model import crds
from batholith.model.admission import AdmissionRequest, DeniedError, Webhook
from batholith.model.names import JOBS, NAMESPACES, PODGROUPS, PODS, QUEUES, Resource

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WebhookClient:
    """The server as a client sees it."""

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
        """Status, and the JSON or text of the answer."""
        raw = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        headers = {"Content-Type": content_type} if content_type else {}
        connector = aiohttp.TCPConnector(ssl=self.ca_context)
        async with (
            aiohttp.ClientSession(
                connector=connector, skip_auto_headers=["Content-Type"]
            ) as session,
            session.post(self.url + path, data=raw, headers=headers) as answer,
        ):
            text = await answer.text()
            return answer.status, json.loads(text) if answer.status == 200 else text

    async def review(self, path: str, request: Json) -> Json:
        """The response to a review."""
        status, answer = await self.send(path, review(request))
        assert status == 200, answer
        assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        response: Json = answer["response"]
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
async def opened(
    *hooks: Webhook, figures: ListenerMetrics | None = None
) -> AsyncIterator[WebhookClient]:
    """The webhook server without an API server: no cache holds anything."""
    now, lasts = datetime.now(UTC), timedelta(days=1)
    authority = create_ca("tests", now=now, validity=lasts)
    async with unreachable_client() as client:
        desk, presenter = (
            AdmissionHandler(hooks or WEBHOOKS, empty_reader(client)),
            ServingCertificate(),
        )
        leaf = issue_leaf(authority)
        assert presenter.load(leaf.certificate_pem, leaf.key_pem)
        server = ReviewServer(presenter, address="127.0.0.1", port=0, metrics=figures)
        listening = serve_until_exit(server, desk)
        async with listening as url:
            yield WebhookClient(url, desk, presenter, authority)


def unreachable_client() -> Client:
    """A client of a server that cannot be reached."""
    return Client(Credentials(server="http://127.0.0.1:9"), user_agent="tests")


def empty_reader(client: Client) -> InformerReader:
    """Caches that have never been told of anything: as late as caches can be."""
    return InformerReader(client, (QUEUES, NAMESPACES))


@pytest.mark.parametrize("hook", WEBHOOKS, ids=lambda hook: hook.path)
def test_a_path_that_is_served_alone_has_what_its_rules_look_at(hook: Webhook) -> None:
    given: Json = {
        "Job": job(),
        "Queue": queue("q", parent="p"),
        "PodGroup": {"spec": {"queue": "q"}},
    }
    empty: Json = {"spec": {}}
    for obj in (given.get(hook.resource.kind, empty), empty):
        reading = InformerReader(
            unreachable_client(), LOOKED_UP_RESOURCES.get(hook.path, ())
        ).recording()
        review = AdmissionRequest(
            operation="CREATE", namespace="ns", name="x", object=obj, old_object=None
        )
        with suppress(DeniedError):  # anything else is a shelf that is missing
            if hook.mutate:
                hook.mutate(review, reading)
            if hook.validate:
                hook.validate(review, reading)


def issue_leaf(ca: CertKeyPair) -> CertKeyPair:
    wanted = CertificateRequest(subject="x", validity=timedelta(days=1), hosts=("127.0.0.1",))
    return issue_certificate(ca, wanted, now=datetime.now(UTC))


@pytest.fixture
async def client() -> AsyncIterator[WebhookClient]:
    async with opened() as door:
        yield door


# -- reviews


async def test_defaults_come_back_as_a_patch(client: WebhookClient) -> None:
    sent = job()
    response = await client.review("/jobs/mutate", request(sent, JOBS))
    assert (response["allowed"], response["patchType"]) == (True, "JSONPatch")
    stored = json_patch(sent, json.loads(base64.b64decode(response["patch"])))
    assert stored["spec"]["minAvailable"] == 1
    assert stored["spec"]["maxRetry"] == 3


def test_it_answers_on_uvloop_too() -> None:
    """On which the process runs."""

    async def talk() -> None:
        async with opened() as door:
            for _ in range(2):
                response = await door.review("/queues/validate", request(queue("a"), QUEUES))
                assert response["allowed"]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(talk())


async def test_what_needs_no_defaults_gets_no_patch(client: WebhookClient) -> None:
    first = await client.review("/jobs/mutate", request(job(), JOBS))
    full = json_patch(job(), json.loads(base64.b64decode(first["patch"])))
    again = await client.review("/jobs/mutate", request(full, JOBS))
    assert again == {"uid": again["uid"], "allowed": True}


async def test_a_refusal_has_a_message_and_neither_code_nor_reason(client: WebhookClient) -> None:
    response = await client.review("/queues/validate", request(queue("a", parent="a"), QUEUES))
    assert response["allowed"] is False
    assert response["status"] == {"message": "queue a cannot use itself as parent"}


async def test_a_refusal_is_logged_under_the_name_of_what_was_refused(
    client: WebhookClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await client.review("/jobs/validate", request(job(queue="none"), JOBS))
    (line,) = [vars(line) for line in caplog.records if line.message == "refused"]
    assert line["job"] == "ns/j"


async def test_a_deletion_is_judged_by_what_was_there(client: WebhookClient) -> None:
    gone = request(queue("default"), QUEUES, operation="DELETE")
    response = await client.review("/queues/validate", gone)
    assert response["status"]["message"] == "`default` queue can not be deleted"


async def test_what_a_cache_has_not_seen_yet_is_looked_up(server: EmbeddedServer) -> None:
    await server.create(QUEUES.path(), queue("fresh") | {"apiVersion": QUEUES.api_version})
    space = {"name": "ns", "annotations": {"scheduling.volcano.sh/queue-name": "fresh"}}
    await server.create(NAMESPACES.path(), {"metadata": space})
    sent = {"metadata": {"name": "g", "namespace": "ns"}, "spec": {"queue": "default"}}
    asked = request(sent, PODGROUPS)
    async with server.client() as client:
        desk = AdmissionHandler(WEBHOOKS, empty_reader(client))
        answer = await desk(review(asked), webhook="podgroups/mutate")
        patched = json_patch(sent, json.loads(base64.b64decode(answer["response"]["patch"])))
        assert patched["spec"]["queue"] == "fresh"
        answer = await desk(review(request(patched, PODGROUPS)), webhook="podgroups/validate")
        assert answer["response"]["allowed"] is True
        child = request(queue("child", parent="fresh"), QUEUES)
        answer = await desk(review(child), webhook="queues/validate")
        assert answer["response"]["allowed"] is True


async def test_without_an_answer_of_the_server_the_caches_decide(client: WebhookClient) -> None:
    response = await client.review("/queues/validate", request(queue("c", parent="p"), QUEUES))
    assert "failed to get parent queue p" in response["status"]["message"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"resource": {"group": "batch", "version": "v1", "resource": "jobs"}}, "jobs of batch/v1"),
        ({"resource": {"group": "", "version": "v1", "resource": "pods"}}, "pods of core/v1"),
        ({"subResource": "status"}, "not jobs/status of"),
        ({"operation": "DELETE"}, "unexpected operation DELETE"),
        ({"operation": "CONNECT"}, "unexpected operation CONNECT"),
    ],
)
async def test_what_a_path_is_not_for_is_refused(
    client: WebhookClient, change: Json, words: str
) -> None:
    """A configuration that is wrong must not open the door."""
    response = await client.review("/jobs/validate", request(job(), JOBS) | change)
    assert response["allowed"] is False
    assert words in response["status"]["message"]


async def test_o22_a_wrong_type_is_left_to_the_schema_or_named_with_its_path(
    client: WebhookClient,
) -> None:
    wrong = job(minAvailable="two")
    assert (await client.review("/jobs/mutate", request(wrong, JOBS)))["allowed"] is True
    response = await client.review("/jobs/validate", request(wrong, JOBS))
    assert response["status"]["message"] == "spec.minAvailable: Expected int, got str"


async def test_rules_can_be_exchanged_while_serving(client: WebhookClient) -> None:
    pod = {"metadata": {"name": "p", "namespace": "ns"}, "spec": {}}
    asked = request(pod, PODS)
    assert "patch" not in await client.review("/pods/mutate", asked)
    group = ResourceGroup(namespaces=frozenset({"ns"}), scheduler_name="volcano")
    client.handler.set_webhooks(webhooks(AdmissionSettings(resource_groups=(group,))))
    assert "patch" in await client.review("/pods/mutate", asked)


# -- what is no review


def deep() -> bytes:
    return b'{"a":' * 100_000


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b'"\xff"', "no JSON"),
        (deep(), "no JSON"),
        (b"[]", "not an AdmissionReview"),
        (b"null", "not an AdmissionReview"),
        (b"{}", "not an AdmissionReview"),
        ({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}, "`request`"),
        (review({}), "`uid`"),
        (review({"uid": "1", "operation": 3, "resource": {}}), "$.request.operation"),
        (review(request(job(), JOBS)) | {"kind": "Pod"}, "a Pod came"),
        (
            review(request(job(), JOBS)) | {"apiVersion": "admission.k8s.io/v1beta1"},
            "expected apiVersion",
        ),
    ],
    ids=lambda value: str(value)[:24],
)
async def test_o6_what_is_no_review_gets_400_with_the_reason(
    client: WebhookClient, body: bytes | Json, words: str
) -> None:
    status, text = await client.send("/jobs/validate", body)
    assert (status, words in text) == (400, True), text
    assert (await client.review("/jobs/validate", request(job(), JOBS)))["uid"], "it goes on"


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/yaml"])
async def test_another_content_type_gets_415(client: WebhookClient, content_type: str) -> None:
    status, text = await client.send("/jobs/validate", b"{}", content_type=content_type)
    assert (status, "expected application/json" in text) == (415, True)


@pytest.mark.parametrize("path", ["/", "/jobs", "/jobs/validate/", "/jobflows/validate", "/x"])
async def test_an_unknown_path_gets_404_and_lets_nothing_pass(
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


async def test_three_mebibytes_are_taken_and_no_more(client: WebhookClient) -> None:
    assert (await client.send("/jobs/mutate", padded(MAX_BODY)))[0] == 200
    assert (await client.send("/jobs/mutate", padded(MAX_BODY + 1)))[0] == 413


async def test_a_body_without_a_length_is_cut_off_too(client: WebhookClient) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b" " * 2**16

    connector = aiohttp.TCPConnector(ssl=client.ca_context)
    headers = {"Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"{client.url}/jobs/mutate", data=endless(), headers=headers) as answer,
    ):
        assert answer.status == 413


async def test_other_methods_are_refused(client: WebhookClient) -> None:
    connector = aiohttp.TCPConnector(ssl=client.ca_context)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"{client.url}/jobs/mutate") as answer,
    ):
        assert answer.status == 405


# -- certificates and the end


async def test_open_connections_go_on_with_another_certificate(client: WebhookClient) -> None:
    connector = aiohttp.TCPConnector(ssl=client.ca_context, limit=1)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def answered() -> int:
            body = review(request(job(), JOBS))
            async with session.post(f"{client.url}/jobs/mutate", json=body) as answer:
                return answer.status

        assert await answered() == 200
        stranger = create_ca("other", now=datetime.now(UTC), validity=timedelta(days=1))
        leaf = issue_leaf(stranger)
        assert client.serving_certificate.load(leaf.certificate_pem, leaf.key_pem)
        assert await answered() == 200, "on the connection that is open"
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await client.send("/jobs/mutate", b"{}")


async def test_a_key_of_another_certificate_is_refused_and_the_former_stays(
    client: WebhookClient,
) -> None:
    one, other = issue_leaf(client.ca), issue_leaf(client.ca)
    with pytest.raises(CertificateError, match="cannot be served"):
        client.serving_certificate.load(one.certificate_pem, other.key_pem)
    assert (await client.send("/x", b"{}"))[0] == 404


async def test_tls_below_1_2_is_not_spoken(client: WebhookClient) -> None:
    assert client.serving_certificate.context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert all(
        "GCM" in each["name"] or "TLS_" in each["name"]
        for each in ciphers(client.serving_certificate)
    )


def ciphers(serving_certificate: ServingCertificate) -> list[Any]:
    return list(serving_certificate.context.get_ciphers())


async def test_a_review_in_hand_is_answered_at_the_end() -> None:
    """The server is told to stop while the rule is asked; the answer must still come."""
    stopping = asyncio.Event()

    def slow(asked: AdmissionRequest, lookup: object) -> None:
        stopping.set()

    hook = Webhook(
        name="x", path="/x", resource=JOBS, operations=frozenset({"CREATE"}), validate=slow
    )
    async with opened(hook) as door:
        sending = asyncio.create_task(door.send("/x", review(request(job(), JOBS))))
        await stopping.wait()
    status, answer = await sending
    assert (status, answer["response"]["allowed"]) == (200, True)


# -- requests that are not whole


@pytest.mark.parametrize(
    "how", [b"content-length: %d\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n%x\r\n"]
)
async def test_a_review_that_is_cut_off_is_not_looked_at(how: bytes) -> None:
    asked: list[AdmissionRequest] = []
    hook = Webhook(
        name="x",
        path="/x",
        resource=JOBS,
        operations=frozenset({"CREATE"}),
        validate=lambda review, _: asked.append(review),
    )
    figures = ListenerMetrics()
    async with opened(hook, figures=figures) as door:
        body = json.dumps(review(request(job(), JOBS))).encode()
        address = door.url.removeprefix("https://").split(":")
        _, writer = await asyncio.open_connection(*address, ssl=door.ca_context)
        head = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        length = len(body) + 1 if b"length" in how else len(body)
        writer.write(head + how % length + body + b"\r\n" * (b"chunked" in how))
        writer.close()
        await wait_for(lambda: figures.rejections["webhooks", "truncated"] == 1)
        await door.review("/x", request(job(), JOBS))
    assert len(asked) == 1
