"""The admission component with a real API server: denials, certificates, configurations."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from support.admission import job, queue, task
from support.admission_server import FAST_ELECTION, LEASE, NAMESPACE, admission, options
from support.api_servers import RealServerFactory
from support.embedded_apiserver import Server
from support.kubectl import Kubectl, needs_kubectl
from support.polling import wait_for, wait_until_true

from batholith.admission.serving.cert_files import CertificateFiles
from batholith.admission.serving.cert_rotation import RotationPolicy
from batholith.admission.serving.cert_secret import SecretSettings
from batholith.admission.serving.service import AdmissionOptions, AdmissionService
from batholith.machinery.clock import SystemClock
from batholith.machinery.x509 import CertificateRequest, CertKeyPair, create_ca, issue_certificate
from batholith.model.names import JOBS, LEASES, MUTATING_CONFIGURATIONS, QUEUES, SECRETS
from batholith.model.names import VALIDATING_CONFIGURATIONS as VALIDATING

Json = dict[str, Any]

DATA = Path(__file__).parents[1] / "data"
ALL_PATHS = (
    "/jobs/mutate",
    "/jobs/validate",
    "/podgroups/mutate",
    "/podgroups/validate",
    "/queues/mutate",
    "/queues/validate",
)
SECRET = SECRETS.path(NAMESPACE, "batholith-admission-secret")
QUEUES_VALIDATE = VALIDATING.path(name="batholith-queues-validate")
DRY_RUN = f"{QUEUES.path()}?dryRun=All"


@pytest.fixture
async def server(real: RealServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with real.start(tmp_path) as started:
        yield started


def lines(name: str) -> list[Json]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def named(name: str, **spec: Any) -> Json:
    return queue(name, **spec) | {"apiVersion": QUEUES.api_version}


async def denies_queue(server: Server) -> bool:
    """Whether a queue below none is refused, and by us."""
    response = await server.request("POST", DRY_RUN, named("lost", parent="nosuch"))
    return response.status == 400 and "failed to get parent queue" in response.body["message"]


async def wait_called(server: Server) -> None:
    await wait_until_true(lambda: denies_queue(server))


async def wait_defaulted(server: Server) -> None:
    """The same, with defaults: an API server observes mutating webhooks by another watch.

    It observes the webhook for queues last.
    """
    await wait_called(server)
    path = {"volcano.sh/hierarchy": "a", "volcano.sh/hierarchy-weights": "2"}

    async def is_defaulted() -> bool:
        response = await server.request("POST", DRY_RUN, named("asked", annotations=path))
        notes = response.body["metadata"].get("annotations", {})
        return response.status == 201 and notes.get("volcano.sh/hierarchy") == "root/a"

    await wait_until_true(is_defaulted)
    await server.create(QUEUES.path(), named("default"))


async def bundle_of(server: Server, path: str = QUEUES_VALIDATE) -> str:
    """What the configuration at *path* trusts, base64."""
    response = await server.request("GET", path)
    if response.status != 200:
        return ""
    bundle: str = response.body["webhooks"][0]["clientConfig"].get("caBundle", "")
    return bundle


# -- what users read


DIFFERENT = {
    # The schema names field and type, where the reference's decoder speaks of Go's types.
    "wrong-type": 'spec.minAvailable in body must be of type integer: "string"',
    "gq-cap": 'spec.capability.cpu: Invalid value: "x"',
    # A longer message.
    "volume-both": "mountPath /a has both",
    "j" * 70: "-t-1 validate failed [name part must be no more than 63 bytes]",
}
"""Objects whose refusal reads otherwise than in the recordings, and how."""


async def test_refusals_are_those_of_the_recordings_layer_by_layer(
    server: Server, tmp_path: Path
) -> None:
    """Decoding first, then defaults, the schema, and the rules; one of them alone speaks."""
    needs_kubectl()
    known = {(o["kind"], o["metadata"]["name"]): o for o in map(_object, lines(DENIALS))}
    kubectl, wrong = Kubectl(server, tmp_path), []
    async with admission(server, options(*ALL_PATHS)):
        await wait_defaulted(server)
        await server.create(QUEUES.path(), named("root"))
        for case in lines("recorded-denials.jsonl"):
            text = json.dumps(known[case["kind"], case["name"]])
            result = await kubectl.run("create", "-f", "-", stdin=text)
            expected = DIFFERENT.get(case["name"]) or str(case["error"])
            layer, _, text = expected.rpartition(" denied the request: ")
            # Several schema errors have a line each, in random order.
            reported = all(each in result.err for each in (layer, *text.splitlines()))
            if bool(expected) != bool(result.code) or not reported:
                wrong.append((case["name"], expected, result.err))
    assert wrong == []


DENIALS = "admission-denials.jsonl"


def _object(case: Json) -> Json:
    found: Json = case["object"]
    return found


async def test_a_job_may_follow_its_queue_at_once(server: Server) -> None:
    """No cache is that fast; so a denial needs a read from the server."""
    body = job(task(replicas=3)) | {"apiVersion": JOBS.api_version}
    async with admission(server, options(*ALL_PATHS)):
        await wait_defaulted(server)
        for number in range(10):
            name = f"q{number}"
            await server.create(QUEUES.path(), named(name))
            expected = {**body, "metadata": {"name": name}, "spec": body["spec"] | {"queue": name}}
            response = await server.request("POST", JOBS.path("default"), expected)
            # The queue controller does not run here: a queue without a state is open.
            assert response.status == 201, response.body
            assert response.body["spec"]["minAvailable"] == 3


# -- certificates


async def test_two_that_start_together_serve_one_certificate(server: Server) -> None:
    first, second = options(), options()
    async with admission(server, first) as one, admission(server, second) as other:
        assert await served_certificate(one) == await served_certificate(other)
        stored = await server.get(SECRET)
        assert set(stored["data"]) == {"ca.crt", "tls.crt", "tls.key"}
        trusted = await bundle_of(server)
        await wait_called(server)
        assert trusted in ("", stored["data"]["ca.crt"])
        assert await bundle_of(server) == stored["data"]["ca.crt"]


async def served_certificate(
    endpoint: AdmissionService, context: ssl.SSLContext | None = None
) -> x509.Certificate:
    """The certificate that a new connection gets; *context* sets the trusted CAs, default any."""
    host, port = endpoint.url.removeprefix("https://").split(":")
    if context is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    raw = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return x509.load_der_x509_certificate(raw)


LAG = 0.5
"""Max delay until an API server observes a changed configuration, in seconds."""

PROPAGATION_DELAY = 8.0
"""Timeout of that in the test, in seconds: much longer, as the server may be busy."""


async def test_no_request_fails_while_certificates_change(server: Server) -> None:
    """Neither by the API server, nor by one that opens new connections and is stale."""
    lifetimes = RotationPolicy(
        validity=timedelta(seconds=600),
        renew_before=timedelta(seconds=598),
        propagation_delay=PROPAGATION_DELAY,
        old_ca_retention=PROPAGATION_DELAY,
    )
    seen: set[bytes] = set()
    done = asyncio.Event()

    async def ask() -> int:
        count = 0
        while not done.is_set():
            assert await denies_queue(server)
            count += 1
            await asyncio.sleep(0.02)  # as many as possible would only take processor time
        return count

    async def connect_late(service: AdmissionService) -> int:
        count = 0
        while len(seen) < 3:
            bundle = base64.b64decode(await bundle_of(server))
            await asyncio.sleep(LAG)
            certificate = await served_certificate(
                service, ssl.create_default_context(cadata=bundle.decode())
            )
            seen.add(certificate.public_bytes(Encoding.DER))
            count += 1
        return count

    async with admission(server, options(lifetimes=lifetimes)) as service:
        await wait_called(server)
        async with asyncio.timeout(100), asyncio.TaskGroup() as tasks:
            asking = [tasks.create_task(ask()) for _ in range(3)]
            assert await connect_late(service) > 10
            done.set()
    assert min(task.result() for task in asking) > 10


async def test_taking_the_secret_away_asks_for_a_new_certificate(server: Server) -> None:
    lifetimes = RotationPolicy(
        propagation_delay=PROPAGATION_DELAY, old_ca_retention=PROPAGATION_DELAY
    )
    async with admission(server, options(lifetimes=lifetimes)) as service:
        await wait_called(server)
        before = await served_certificate(service)
        await server.request("DELETE", SECRET)

        async def changed() -> bool:
            assert await denies_queue(server), "what was trusted before still is"
            return await served_certificate(service) != before

        await wait_until_true(changed)


async def test_a_damaged_secret_is_mended(server: Server) -> None:
    lifetimes = RotationPolicy(
        propagation_delay=PROPAGATION_DELAY, old_ca_retention=PROPAGATION_DELAY
    )
    async with admission(server, options(lifetimes=lifetimes)) as service:
        await wait_called(server)
        before = await served_certificate(service)
        patch = {"data": {"tls.key": "bm9uc2Vuc2U="}}
        kind = "application/merge-patch+json"
        await server.request("PATCH", SECRET, patch, content_type=kind)

        async def changed() -> bool:
            assert await denies_queue(server)
            return await served_certificate(service) != before

        await wait_until_true(changed)


async def test_a_secret_of_somebody_else_is_served_and_never_written(server: Server) -> None:
    now, lasts = datetime.now(UTC), timedelta(hours=1)
    authority = create_ca("theirs", now=now, validity=lasts)
    theirs = issue_certificate(
        authority, CertificateRequest(subject="x", validity=lasts, hosts=("127.0.0.1",)), now=now
    )
    data = {
        "ca.crt": authority.certificate_pem.decode(),
        "tls.crt": theirs.certificate_pem.decode(),
        "tls.key": theirs.key_pem.decode(),
    }
    metadata = {"name": "batholith-admission-secret"}
    body = {"kind": "Secret", "apiVersion": "v1", "metadata": metadata, "stringData": data}
    created = await server.create(SECRETS.path(NAMESPACE), body)
    async with admission(server, options()) as service:
        await wait_called(server)
        assert await served_certificate(service) == theirs.certificate
        kept = await server.get(SECRET)
        assert kept["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


# -- configurations


async def test_trust_that_somebody_takes_away_is_written_again(server: Server) -> None:
    async with admission(server, options()):
        await wait_called(server)
        trusted = await bundle_of(server)
        without = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
        kind = "application/json-patch+json"
        for path in (QUEUES_VALIDATE, MUTATING_CONFIGURATIONS.path(name="batholith-queues-mutate")):
            taken = await server.request("PATCH", path, without, content_type=kind)
            assert "caBundle" not in taken.body["webhooks"][0]["clientConfig"]

            async def is_back(path: str = path) -> bool:
                return await bundle_of(server, path) == trusted

            await wait_until_true(is_back)


async def test_a_configuration_that_is_deleted_comes_back_if_we_register(
    server: Server,
) -> None:
    async with admission(server, options()):
        await wait_called(server)
        await server.request("DELETE", QUEUES_VALIDATE)
        await wait_until_true(lambda: exists(server, QUEUES_VALIDATE))


async def exists(server: Server, path: str) -> bool:
    return (await server.request("GET", path)).status == 200


async def test_configurations_of_others_are_left_alone(server: Server) -> None:
    """Of the reference's name, and of ours but leading elsewhere."""
    expected = options()
    theirs = {
        "kind": VALIDATING.kind,
        "apiVersion": VALIDATING.api_version,
        "webhooks": [
            {
                "name": "x.example.com",
                "clientConfig": {"url": "https://127.0.0.1:1/queues/validate"},
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Ignore",
            }
        ],
    }
    names = ("volcano-admission-service-queues-validate", "batholith-queues-validate")
    for name in names:
        await server.create(VALIDATING.path(), {**theirs, "metadata": {"name": name}})
    async with admission(server, expected):
        mutate = MUTATING_CONFIGURATIONS.path(name="batholith-queues-mutate")
        await wait_until_true(lambda: exists(server, mutate))
        for name in names:
            assert await bundle_of(server, VALIDATING.path(name=name)) == ""


async def test_without_registering_nothing_is_made_but_trust_is_written(
    server: Server,
) -> None:
    expected = replace(options(), register=False)
    async with admission(server, expected):
        service = {
            "webhooks": [_entry(expected)],
            "metadata": {"name": "batholith-queues-validate"},
        }
        head = {"kind": VALIDATING.kind, "apiVersion": VALIDATING.api_version}
        await server.create(VALIDATING.path(), head | service)
        await wait_called(server)
        assert not await exists(
            server, MUTATING_CONFIGURATIONS.path(name="batholith-queues-mutate")
        )


def _entry(wanted: AdmissionOptions) -> Json:
    return {
        "name": "validatequeue.volcano.sh",
        "clientConfig": wanted.endpoint.client_config("/queues/validate"),
        "rules": [
            {
                "apiGroups": [QUEUES.group],
                "apiVersions": [QUEUES.version],
                "resources": [QUEUES.plural],
                "operations": ["CREATE", "UPDATE", "DELETE"],
            }
        ],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }


async def test_o7_two_installations_have_configurations_of_their_own(server: Server) -> None:
    first, second = options(), replace(options(), prefix="other")
    second = replace(second, certificates=replace(_secret(second), name="other-secret"))
    theirs = VALIDATING.path(name="other-queues-validate")
    async with admission(server, first), admission(server, second, election=OTHER):
        await wait_called(server)
        await wait_until_true(lambda: exists(server, theirs))
        trusted = {await bundle_of(server), await bundle_of(server, theirs)}
        assert len(trusted) == 2
        assert await denies_queue(server)


OTHER = replace(FAST_ELECTION, name="other-admission")


def _secret(wanted: AdmissionOptions) -> SecretSettings:
    assert isinstance(wanted.certificates, SecretSettings)
    return wanted.certificates


# -- leader tasks


async def restores_ca_bundle(server: Server) -> None:
    """Whether a leader reconciles the configurations: a removed caBundle is restored."""
    trusted = await bundle_of(server)
    without = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
    kind = "application/json-patch+json"
    taken = await server.request("PATCH", QUEUES_VALIDATE, without, content_type=kind)
    assert taken.status == 200, taken.body

    async def is_restored() -> bool:
        return await bundle_of(server) == trusted

    await wait_until_true(is_restored)


async def test_another_replica_takes_over_when_the_holder_of_the_office_ends(
    server: Server,
) -> None:
    first = options()
    second = replace(options(), endpoint=first.endpoint)
    async with AsyncExitStack() as stack:
        async with admission(server, first):
            await wait_called(server)
            await stack.enter_async_context(admission(server, second))
            lease = await server.get(LEASES.path(NAMESPACE, LEASE))
        await restores_ca_bundle(server)
        later = await server.get(LEASES.path(NAMESPACE, LEASE))
        assert later["spec"]["holderIdentity"] not in ("", lease["spec"]["holderIdentity"])


async def test_losing_the_office_ends_no_review_and_it_is_stood_for_again(server: Server) -> None:
    async with admission(server, options(), election=FAST_ELECTION) as service:
        await wait_called(server)
        thief = {"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 1}}
        kind = "application/merge-patch+json"
        path = LEASES.path(NAMESPACE, LEASE)
        assert (await server.request("PATCH", path, thief, content_type=kind)).status == 200

        async def holds_again() -> bool:
            assert await denies_queue(server)
            assert service.url
            return (await server.get(path))["spec"]["holderIdentity"] not in ("", "thief")

        await wait_until_true(holds_again)
        await restores_ca_bundle(server)


# -- the end


SHUTDOWN_DELAY = 1234.0


class ShutdownDelayClock(SystemClock):
    """Real time, except that the shutdown delay ends when the test ends it."""

    def __init__(self) -> None:
        self.delay_elapsed = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        await (self.delay_elapsed.wait() if seconds == SHUTDOWN_DELAY else super().sleep(seconds))


async def test_reviews_are_taken_for_a_while_after_the_end_has_begun(server: Server) -> None:
    """Callers observe the shutdown later than the server."""
    expected, clock = options(), ShutdownDelayClock()
    lingering = replace(expected, listen=replace(expected.listen, shutdown_delay=SHUTDOWN_DELAY))
    async with aiohttp.ClientSession() as session, AsyncExitStack() as stack:
        service = await stack.enter_async_context(admission(server, lingering, clock=clock))
        url, trust = service.url, ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE

        async def closes() -> tuple[int, bool]:
            async with session.post(f"{url}/nosuch", json={}, ssl=trust) as response:
                return response.status, response.headers.get("Connection") == "close"

        assert await closes() == (404, False)
        ending = asyncio.create_task(stack.aclose())
        await wait_for(lambda: not service.url)
        assert await closes() == (404, True)
        clock.delay_elapsed.set()
        await ending
        with pytest.raises(aiohttp.ClientConnectorError):
            await closes()


# -- files


async def test_certificate_files_are_taken_up_when_they_change(
    server: Server, tmp_path: Path
) -> None:
    files = CertificateFiles(
        certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key", ca=tmp_path / "ca.crt"
    )
    old, new = _make_ca(), _make_ca()
    both = old.certificate_pem + new.certificate_pem
    _write_files(files, old, ca_bundle=both)
    async with admission(server, replace(options(), certificates=files)) as service:
        await wait_called(server)
        async with aiohttp.ClientSession() as session:
            before = await served_certificate(service)
            context = ssl.create_default_context(cadata=both.decode())
            assert await _is_404(session, service, context)
            _write_files(files, new, ca_bundle=both)

            async def changed() -> bool:
                assert await _is_404(session, service, context), "its one connection stays open"
                return await served_certificate(service) != before

            await wait_until_true(changed)
        assert await denies_queue(server)


def _make_ca() -> CertKeyPair:
    return create_ca("files", now=datetime.now(UTC), validity=timedelta(hours=1))


def _write_files(files: CertificateFiles, authority: CertKeyPair, *, ca_bundle: bytes) -> None:
    request = CertificateRequest(subject="x", validity=timedelta(hours=1), hosts=("127.0.0.1",))
    leaf = issue_certificate(authority, request, now=datetime.now(UTC))
    files.certificate.write_bytes(leaf.certificate_pem)
    files.key.write_bytes(leaf.key_pem)
    assert files.ca is not None
    files.ca.write_bytes(ca_bundle)


async def _is_404(
    session: aiohttp.ClientSession, service: AdmissionService, context: ssl.SSLContext
) -> bool:
    async with session.post(f"{service.url}/nosuch", json={}, ssl=context) as response:
        return response.status == 404
