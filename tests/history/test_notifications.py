"""Notifications: which are written with the history, and how they are sent."""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from support.embedded_apiserver import embedded_server
from support.history_world import FaultyDatabase
from support.polling import wait_until_true
from support.recorded_jobs import create, job, set_phase
from support.rest import rest_at, running_api, sqlite
from support.running_controller import FakeRecorder

from batholith.api.history.metrics import NotificationMetrics
from batholith.api.history.notifications import (
    COUNT_INTERVAL,
    INITIAL_BACKOFF,
    KeyFileError,
    NotificationSender,
    NotificationSettings,
    post_to_address,
    signed_headers,
)
from batholith.api.history.recorder import recorded_resources
from batholith.api.history.tasks import HistorySettings
from batholith.machinery.testing import FakeClock
from batholith.model import crds, times
from batholith.model.names import QUEUES
from batholith.model.notification_destinations import Address, Destinations
from batholith.model.notifications import NotifyEvent, Subscription
from batholith.store.database import Database
from batholith.store.notifications import MAX_AGE, NotificationStore
from batholith.store.recording import Batch, Recording
from batholith.store.records import JobRecord, PhaseEntry, to_micros

KEY = b"0123456789abcdef"
PUBLIC = ip_address("93.184.215.14")
JOBS_PATH = "/v1/namespaces/default/jobs"
URL = "https://example.org/hooks/secret-path"


class World:
    """A store with a recorder, and a sender whose requests are collected."""

    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        self.database = FaultyDatabase()
        self.recording = Recording(cast(Database, self.database))
        self.store = NotificationStore(cast(Database, self.database))
        self.key_file = directory / "key"
        self.key_file.write_bytes(KEY + b"\n")
        self.sent: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.statuses: dict[str, int | OSError] = {}
        self.registry = CollectorRegistry()
        self.metrics = NotificationMetrics(self.registry)
        self.recorder = FakeRecorder()
        self.addresses: dict[str, Sequence[Address]] = {}
        self.version = 0
        self.phases: tuple[PhaseEntry, ...] = ()

    async def begin(self) -> "World":
        await self.recording.begin()
        return self

    def sender(self, *allowed: str) -> NotificationSender:
        settings = NotificationSettings(
            key_file=self.key_file,
            destinations=Destinations.parse(allowed),
            metrics=self.metrics,
        )
        return NotificationSender(
            cast(Database, self.database),
            settings,
            clock=self.clock,
            recorder=self.recorder,
            post=self._post,
            resolve_host=self._resolve,
        )

    async def _resolve(self, host: str, port: int) -> Sequence[Address]:
        return self.addresses.get(host, [PUBLIC])

    async def _post(
        self, url: str, addresses: Sequence[Address], body: bytes, headers: dict[str, str]
    ) -> int:
        self.sent.append((url, json.loads(body), headers))
        status = self.statuses.get(url, 200)
        if isinstance(status, OSError):
            raise status
        return status

    def attempts(self) -> dict[str, float]:
        """Counted attempts by outcome."""
        name = "batholith_notification_attempts_total"
        samples = (each for family in self.registry.collect() for each in family.samples)
        return {each.labels["outcome"]: each.value for each in samples if each.name == name}

    def pending(self) -> float | None:
        return self.registry.get_sample_value("batholith_notifications_pending")

    def events(self) -> list[str]:
        return [body["event"] for _, body, _ in self.sent]

    async def enter(
        self,
        phase: str,
        *events: NotifyEvent,
        reason: str = "",
        url: str = URL,
        warn_after: float | None = None,
        uid: str = "u1",
        deleted: bool = False,
    ) -> None:
        """Record that the job has entered *phase* now."""
        now = to_micros(self.clock.now())
        if not deleted:
            self.phases += (PhaseEntry(phase=phase, entered_at=now, reason=reason),)
        wanted = frozenset(events or NotifyEvent)
        await self.write(
            JobRecord(
                uid=uid,
                kind="jobs",
                namespace="default",
                name="train",
                phase=phase,
                reason=reason,
                resource_version=str(self.version),
                created_at=now,
                phases=self.phases,
                deleted=deleted,
                notify=Subscription(url=url, events=wanted, warn_after=warn_after),
            )
        )

    async def write(self, *records: JobRecord) -> None:
        previous, self.version = self.version, self.version + 1
        now = to_micros(self.clock.now())
        await self.recording.write(
            Batch(
                resource="jobs",
                previous=str(previous) if previous else "",
                position=str(self.version),
                observed_at=now,
                seen_at=now,
                records=records,
            )
        )

    async def stored(self) -> list[str]:
        due = await self.store.due(
            self.clock.now() + timedelta(days=3650), limit=100, except_hosts=()
        )
        return [each.id for each in due]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    found = await World(tmp_path).begin()
    yield found
    found.database.close()


async def test_a_job_notifies_of_its_start_and_its_end_once(world: World) -> None:
    for phase in ("Pending", "Running", "Completed"):
        await world.enter(phase)
    await world.sender().send_due()
    await world.sender().send_due()
    assert world.events() == ["start", "end"]
    assert await world.stored() == []
    url, body, headers = world.sent[1]
    assert url == URL
    assert body["job"]["phase"] == "Completed"
    assert body["text"] == "jobs/train in default is Completed"
    assert headers["webhook-id"] == body["id"]


async def test_a_failure_is_an_end_and_is_sent_once_for_both(world: World) -> None:
    await world.enter("Failed", NotifyEvent.FAILURE, NotifyEvent.END)
    await world.sender().send_due()
    assert world.events() == ["failure"]


@pytest.mark.parametrize(
    ("events", "phase", "expected"),
    [
        ((NotifyEvent.END,), "Failed", ["failure"]),
        ((NotifyEvent.FAILURE,), "Completed", []),
        ((NotifyEvent.FAILURE,), "Failed", ["failure"]),
        ((NotifyEvent.START,), "Terminated", []),
        ((NotifyEvent.END,), "Terminated", ["end"]),
        ((NotifyEvent.END,), "Aborted", []),
    ],
)
async def test_only_chosen_events_are_sent(
    world: World, events: tuple[NotifyEvent, ...], phase: str, expected: list[str]
) -> None:
    await world.enter(phase, *events)
    await world.sender().send_due()
    assert world.events() == expected


async def test_a_job_that_is_deleted_before_its_end_notifies_of_that(world: World) -> None:
    await world.enter("Running", NotifyEvent.END)
    await world.enter("Running", NotifyEvent.END, deleted=True)
    await world.sender().send_due()
    assert world.events() == ["end"]
    assert world.sent[0][1]["job"]["reason"] == "Deleted"


async def test_events_of_long_ago_are_not_sent_when_a_job_is_observed_first(world: World) -> None:
    long_ago = to_micros(world.clock.now() - MAX_AGE - timedelta(seconds=1))
    world.phases = (PhaseEntry(phase="Running", entered_at=long_ago),)
    await world.enter("Completed")
    await world.sender().send_due()
    assert world.events() == ["end"]


async def test_a_time_limit_is_warned_of_when_it_is_near(world: World) -> None:
    await world.enter("Running", NotifyEvent.TIME_LIMIT, warn_after=90.0)
    await world.clock.advance(89)
    await world.sender().send_due()
    assert world.events() == []
    await world.clock.advance(1)
    await world.sender().send_due()
    assert world.events() == ["time-limit"]


async def test_time_of_earlier_runs_counts_for_the_warning(world: World) -> None:
    await world.enter("Running", NotifyEvent.TIME_LIMIT, warn_after=90.0)
    await world.clock.advance(60)
    await world.enter("Restarting", NotifyEvent.TIME_LIMIT, warn_after=90.0)
    assert await world.stored() == []
    await world.clock.advance(1000)
    await world.enter("Running", NotifyEvent.TIME_LIMIT, warn_after=90.0)
    await world.clock.advance(29)
    await world.sender().send_due()
    assert world.events() == []
    await world.clock.advance(1)
    await world.sender().send_due()
    assert world.events() == ["time-limit"]


async def test_a_job_that_ends_earlier_is_not_warned_of_its_limit(world: World) -> None:
    await world.enter("Running", NotifyEvent.TIME_LIMIT, warn_after=90.0)
    await world.enter("Completed", NotifyEvent.TIME_LIMIT, warn_after=90.0)
    assert await world.stored() == []


async def test_a_job_that_its_limit_ends_is_warned_of_at_once(world: World) -> None:
    await world.enter("Running", NotifyEvent.TIME_LIMIT, warn_after=90.0)
    await world.enter(
        "Terminating", NotifyEvent.TIME_LIMIT, warn_after=90.0, reason="DeadlineExceeded"
    )
    await world.sender().send_due()
    assert world.events() == ["time-limit"]


async def test_a_batch_that_is_written_twice_notifies_once(world: World) -> None:
    world.database.faults = ["twice"]
    await world.enter("Completed")
    await world.sender().send_due()
    assert world.events() == ["end"]


async def test_a_notification_is_sent_again_until_it_is_delivered(world: World) -> None:
    world.statuses[URL] = 503
    await world.enter("Completed")
    await world.sender().send_due()
    await world.sender().send_due()
    assert len(world.sent) == 1
    for delay in (INITIAL_BACKOFF, 2 * INITIAL_BACKOFF, 4 * INITIAL_BACKOFF):
        await world.clock.advance(delay - 1)
        await world.sender().send_due()  # each another process: the backoff is in the store
        count = len(world.sent)
        await world.clock.advance(1)
        await world.sender().send_due()
        assert len(world.sent) == count + 1
    world.statuses[URL] = 204
    await world.clock.advance(8 * INITIAL_BACKOFF)
    await world.sender().send_due()
    assert await world.stored() == []
    assert {body["id"] for _, body, _ in world.sent} == {"u1-0"}


async def test_a_crash_after_the_delivery_sends_it_again_with_the_same_id(world: World) -> None:
    await world.enter("Completed")
    world.database.faults = ["failed"]
    await world.sender().send_due()
    await world.sender().send_due()
    assert [headers["webhook-id"] for _, _, headers in world.sent] == ["u1-0", "u1-0"]
    assert await world.stored() == []


async def test_a_notification_is_given_up_after_a_day(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.statuses[URL] = OSError("connection refused")
    await world.enter("Completed")
    await world.clock.advance(MAX_AGE.total_seconds() + 1)
    with caplog.at_level(logging.INFO):
        await world.sender().send_due()
    assert world.sent == []
    assert await world.stored() == []
    assert caplog.records[-1].__dict__["outcome"] == "given up"


async def test_the_job_gets_an_event_of_what_is_not_sent(world: World) -> None:
    await world.enter("Completed", url="https://127.0.0.1/secret-path")
    await world.sender().send_due()
    world.phases = ()
    world.statuses[URL] = 503
    await world.enter("Failed", uid="late")
    await world.sender().send_due()
    await world.clock.advance(MAX_AGE.total_seconds() + 1)
    await world.sender().send_due()
    assert world.recorder.events == [
        ("Job", "train", "Warning", "NotificationRefused",
         "127.0.0.1 is not notified of event end: 127.0.0.1 is not a public address, and not"
         " permitted"),
        ("Job", "train", "Warning", "NotificationGivenUp",
         "example.org is not notified of event failure: not delivered within 1 day, 0:00:00"),
    ]  # fmt: skip


async def test_attempts_are_counted_by_their_outcome(world: World) -> None:
    assert world.attempts() == dict.fromkeys(("delivered", "failed", "refused", "given_up"), 0)
    other = "https://other.example/x"
    world.statuses = {URL: 503}
    for uid, url in (("a", URL), ("b", other), ("c", "https://127.0.0.1/")):
        world.phases = ()
        await world.enter("Completed", uid=uid, url=url)
    await world.sender().send_due()
    await world.clock.advance(INITIAL_BACKOFF)
    await world.sender().send_due()
    assert world.attempts() == {"delivered": 1, "failed": 2, "refused": 1, "given_up": 0}
    await world.clock.advance(MAX_AGE.total_seconds())
    await world.sender().send_due()
    assert world.attempts()["given_up"] == 1


async def test_notifications_that_are_not_delivered_are_counted(world: World) -> None:
    world.statuses[URL] = 503
    for uid in ("a", "b"):
        world.phases = ()
        await world.enter("Completed", uid=uid)
    world.phases = ()
    await world.enter("Running", NotifyEvent.TIME_LIMIT, uid="c", warn_after=1e6)  # of the future
    running = asyncio.create_task(world.sender().run())
    await world.clock.advance(COUNT_INTERVAL)
    assert world.pending() == 2
    world.statuses.clear()
    await world.clock.advance(10 * COUNT_INTERVAL)
    assert world.pending() == 0
    world.phases = ()
    world.statuses[URL] = 503
    await world.enter("Failed", uid="d")
    await world.clock.advance(COUNT_INTERVAL)
    assert world.pending() == 1
    running.cancel()
    await asyncio.wait([running])
    assert world.pending() == 0  # another replica counts it


async def test_each_attempt_is_in_the_audit_log_without_the_path(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.statuses[URL] = OSError("connection refused")
    await world.enter("Completed")
    with caplog.at_level(logging.INFO):
        await world.sender().send_due()
        world.statuses[URL] = 200
        await world.clock.advance(INITIAL_BACKOFF)
        await world.sender().send_due()
    found = [each.__dict__ for each in caplog.records if each.__dict__.get("audit")]
    assert [each["outcome"] for each in found] == ["failed", "delivered"]
    assert found[0]["object"] == "jobs/default/train"
    assert found[0]["host"] == "example.org"
    assert "secret-path" not in str(found)


async def test_a_host_that_fails_does_not_delay_others(world: World) -> None:
    other = "https://other.example/x"
    world.statuses[URL] = OSError("connection refused")
    for number in range(3):
        world.phases = ()
        await world.enter("Completed", uid=f"a{number}")
    world.phases = ()
    await world.enter("Completed", uid="b", url=other)
    await world.sender().send_due()
    assert [url for url, _, _ in world.sent] == [URL, other]


async def test_a_new_key_signs_the_next_attempt(world: World) -> None:
    await world.enter("Completed")
    world.key_file.write_bytes(b"x")
    await world.sender().send_due()
    assert world.sent == []  # a key that is too short signs nothing
    new = b"fedcba9876543210"
    world.key_file.write_bytes(new)
    await world.clock.advance(INITIAL_BACKOFF)
    await world.sender().send_due()
    ((_, body, headers),) = world.sent
    at = headers["webhook-timestamp"]
    signed = f"{body['id']}.{at}.".encode() + json.dumps(body, separators=(",", ":")).encode()
    expected = base64.b64encode(hmac.new(new, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The vector is of the specification's reference implementation."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    found = signed_headers(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert found["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_a_missing_key_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot read"):
        NotificationSettings(key_file=tmp_path / "absent").key()


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"),
        *("169.254.169.254", "fe80::1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "224.0.0.1"),
        *("10.1.2.3", "192.168.0.1", "172.16.0.1", "fd00:ec2::254", "100.64.0.1"),
        *("168.63.129.16", "192.0.0.192", "100.100.100.200", "255.255.255.255", "ff02::1"),
    ],
)
async def test_addresses_that_are_not_public_are_refused(
    world: World, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    # One public address does not help.
    world.addresses["example.org"] = [PUBLIC, ip_address(address)]
    await world.enter("Completed")
    literal = f"[{address}]" if ":" in address else address
    world.phases = ()
    await world.enter("Completed", uid="literal", url=f"https://{literal}/")
    with caplog.at_level(logging.INFO):
        await world.sender().send_due()
    assert world.sent == []
    assert await world.stored() == []
    outcomes = [each.__dict__["outcome"] for each in caplog.records if "audit" in each.__dict__]
    assert outcomes == ["refused", "refused"]


async def test_an_operator_permits_hosts_and_networks_also_without_tls(world: World) -> None:
    world.addresses = {
        "hooks.internal": [ip_address("10.0.0.1")],
        "other.internal": [ip_address("10.9.0.1")],
        "far.internal": [ip_address("10.10.0.1")],
    }
    for host in ("hooks.internal", "other.internal", "far.internal", "example.org"):
        world.phases = ()
        await world.enter("Completed", uid=host, url=f"http://{host}/")
    await world.sender("hooks.internal", "10.9.0.0/16").send_due()
    assert sorted(url for url, _, _ in world.sent) == [
        "http://hooks.internal/",
        "http://other.internal/",
    ]
    assert await world.stored() == []


@pytest.mark.parametrize("text", ["", "a b", "10.0.0.0/99", "http://x", "x/y", "a:80"])
def test_what_is_neither_a_host_nor_a_network_cannot_be_permitted(text: str) -> None:
    with pytest.raises(ValueError, match="neither a host nor a network"):
        Destinations.parse([text])


@pytest.fixture
async def receiver() -> AsyncIterator[tuple[int, list[str]]]:
    """A server on loopback, its port and the paths that were posted to."""
    paths: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        paths.append(f"{request.host} {request.path}")
        if request.path == "/moved":
            raise web.HTTPTemporaryRedirect("/elsewhere")
        return web.Response(status=202)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    yield port, paths
    await runner.cleanup()


async def test_a_request_goes_to_the_address_that_was_checked(
    receiver: tuple[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, paths = receiver
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    url = f"http://name.invalid:{port}/hook"
    assert await post_to_address(url, [ip_address("127.0.0.1")], b"{}", {}) == 202
    assert paths == [f"name.invalid:{port} /hook"]


async def test_a_redirect_is_not_followed(receiver: tuple[int, list[str]]) -> None:
    port, paths = receiver
    url = f"http://name.invalid:{port}/moved"
    assert await post_to_address(url, [ip_address("127.0.0.1")], b"{}", {}) == 307
    assert len(paths) == 1
    with pytest.raises(OSError, match=r"name\.invalid:9"):
        await post_to_address("http://name.invalid:9/", [ip_address("127.0.0.1")], b"{}", {})


@pytest.fixture
def queues() -> Iterator[dict[str, dict[str, str]]]:
    yield {"team": {"batholith.io/notify": "https://team.example/"}}


@pytest.mark.parametrize(
    ("annotations", "queue", "expected"),
    [
        ({}, "team", "https://team.example/"),
        ({}, "other", None),
        ({"batholith.io/notify": "none"}, "team", None),
        ({"batholith.io/notify": "https://own.example/"}, "team", "https://own.example/"),
        ({"batholith.io/notify": "ftp://x"}, "team", None),
    ],
)
def test_the_queue_is_the_default_of_its_jobs(
    queues: dict[str, dict[str, str]],
    annotations: dict[str, str],
    queue: str,
    expected: str | None,
) -> None:
    convert = next(
        each.convert
        for each in recorded_resources(lambda name: queues.get(name, {}))
        if each.kind == "jobs"
    )
    meta = {"name": "train", "namespace": "default", "uid": "u", "annotations": annotations}
    raw = json.dumps({"metadata": meta, "spec": {"queue": queue}, "status": {}}).encode()
    record = convert(raw, False)  # type: ignore[arg-type]
    assert isinstance(record, JobRecord)
    assert (record.notify and record.notify.url) == expected


async def test_the_sender_sends_while_it_runs(world: World) -> None:
    await world.enter("Completed")
    running = asyncio.create_task(world.sender().run())
    await world.clock.advance(1)
    running.cancel()
    await asyncio.wait([running])
    assert world.events() == ["end"]


@pytest.mark.cluster
async def test_the_rest_api_notifies_of_jobs_that_are_created_over_it(
    receiver: tuple[int, list[str]], tmp_path: Path
) -> None:
    port, paths = receiver
    (tmp_path / "key").write_bytes(KEY)
    notifications = NotificationSettings(
        key_file=tmp_path / "key", destinations=Destinations.parse(["127.0.0.1"])
    )
    history = HistorySettings(record=True, notifications=notifications)
    async with (
        embedded_server(tmp_path / "cluster", crds=crds.load()) as server,
        server.client() as client,
        running_api(client, sqlite(tmp_path), history=history) as url,
        rest_at(url, server, client) as rest,
    ):
        queue = {
            "metadata": {
                "name": "research",
                "annotations": {"batholith.io/notify": f"http://127.0.0.1:{port}/queue"},
            },
            "spec": {"weight": 1},
        }
        await client.create(QUEUES, queue)
        body = job("train")
        body["metadata"]["annotations"] = {"batholith.io/notify": "http://10.0.0.1/"}
        kind = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}
        status, problem = await rest.call("POST", JOBS_PATH, json={**kind, **body})
        assert status == 422
        assert "10.0.0.1 is not a public address" in str(problem)
        for malformed in (5, None, {"a": 1}, "ftp://127.0.0.1/"):
            body["metadata"]["annotations"] = {"batholith.io/notify": malformed}
            status, problem = await rest.call("POST", JOBS_PATH, json={**kind, **body})
            assert (status, "batholith.io/notify" in str(problem)) == (422, True)
        body["metadata"]["annotations"] = {"batholith.io/notify": f"http://127.0.0.1:{port}/own"}
        status, _ = await rest.call("POST", JOBS_PATH, json={**kind, **body})
        assert status == 201
        await create(rest, "of-queue")
        now = times.format(datetime.now(UTC))
        for name in ("train", "of-queue"):
            await set_phase(client, name, "Running", now)
        await wait_until_true(lambda: _has(paths, 2))
    assert sorted(paths) == [f"127.0.0.1:{port} /own", f"127.0.0.1:{port} /queue"]


async def _has(paths: list[str], count: int) -> bool:
    return len(paths) == count
