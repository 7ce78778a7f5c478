"""``batholith join``: what it accepts, what it stores, and how certificates are renewed."""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from support import joining as requests
from support.embedded_apiserver import EmbeddedServer, embedded_server
from support.polling import wait_until_true
from typer.testing import CliRunner

from batholith.cli import isolation_check
from batholith.cli.main import app
from batholith.cli.nodes import JoinedNode, NodeOptions
from batholith.kube.client.client import Client
from batholith.kube.client.config import load_credentials
from batholith.kube.client.transport import ClientOptions
from batholith.kube.errors import ConnectionLostError, UnauthorizedError
from batholith.kube.private_files import write_private
from batholith.local.agent import certificates
from batholith.local.agent.certificates import (
    CLIENT_FILE,
    SERVING_FILE,
    NodeCertificates,
    NodeIdentity,
)
from batholith.local.agent.settings import node_name
from batholith.local.agent.state.core_types import PersistentVolume
from batholith.local.agent.volumes.pvc_dirs import claim_volume
from batholith.local.apiserver.http.auth import certificate_user
from batholith.local.supervisor import joining, pki
from batholith.local.supervisor.apiserver import Network
from batholith.local.supervisor.datadir import DataDir
from batholith.local.supervisor.membership import JoinError, Membership
from batholith.machinery.clock import SystemClock
from batholith.machinery.x509 import CertKeyPair, Subject
from batholith.model.bootstrap_tokens import JoinToken
from batholith.model.names import DIR_PROVISIONER
from batholith.model.node_identity import CSRS, SIGNERS


@dataclass
class FirstMachine:
    """An API server that others may join."""

    server: EmbeddedServer
    root: Path

    async def token(self, *, ttl: timedelta = timedelta(hours=1)) -> JoinToken:
        created = await requests.create_token(self.server, ttl=ttl)
        return JoinToken(
            token=str(created),
            ca_hash=pki.ca_hash(self.root / "pki"),
            host="127.0.0.1",
            port=self.server.running.port,
        )


@pytest.fixture
async def first(tmp_path: Path) -> AsyncIterator[FirstMachine]:
    network = Network(host="127.0.0.1", listener=None)
    async with embedded_server(tmp_path / "first", network=network) as server:
        yield FirstMachine(server, tmp_path / "first")


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    found = DataDir(tmp_path / "second")
    found.lock()
    found.unlock()
    return found


async def join(data: DataDir, token: JoinToken, node: str = "second") -> Membership:
    """Join as the command does, which has no event loop."""
    return await asyncio.to_thread(joining.join, data, token, node)


async def enter(
    data: DataDir, token: JoinToken | None, name: str | None = None, *, address: str = "192.0.2.7"
) -> str:
    """The node of ``batholith join`` with a token, or of its restart without one."""
    options = NodeOptions(
        token=token, name=name, address=address, cpus=None, host_dirs=(), pods="auto",
        registries=(),
    )  # fmt: skip

    def start() -> str:
        with JoinedNode(data, options) as node:
            return "\n".join((*node.notices, node.usage(detached=False)))

    return await asyncio.to_thread(start)


async def test_a_machine_joins_once_and_starts_again_without_a_token(
    first: FirstMachine, data: DataDir
) -> None:
    with pytest.raises(JoinError, match="has not joined a cluster yet: give the TOKEN@ADDRESS"):
        await enter(data, None)
    token = await first.token()
    with pytest.raises(JoinError, match="CA of the server is not the one that the token names"):
        await join(data, replace(token, ca_hash="0" * 64))
    with pytest.raises(JoinError, match="it has expired or was deleted"):
        await join(data, await first.token(ttl=timedelta(seconds=-1)))
    assert not data.node_json.exists()
    assert "node second of" in await enter(data, token, "second")
    assert "node second of" in await enter(data, None)
    with pytest.raises(JoinError, match="belongs to node second"):
        await enter(data, None, "third")
    with pytest.raises(JoinError, match="belongs to https"):
        await enter(data, replace(token, port=1))
    for path in (data.node_json, data.pki / CLIENT_FILE, data.pki / joining.KUBECONFIG_FILE):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for path in data.root.rglob("*"):
        assert not path.is_file() or token.token not in path.read_text(), "it is not stored"


@pytest.mark.parametrize("address", ["", "127.0.0.1"])
async def test_a_node_of_the_first_machine_needs_another_address(
    first: FirstMachine, data: DataDir, address: str
) -> None:
    token = await first.token()
    with pytest.raises(JoinError, match=r"and 127[.]0[.]0[.]1 is the address of its node"):
        await enter(data, token, address=address)
    assert list(data.pki.iterdir()) == []
    await enter(data, token, address="127.0.0.2")
    with pytest.raises(JoinError, match="the first machine is this one"):
        await enter(data, None, address=address)


async def test_a_machine_other_than_the_first_runs_one_node_of_a_cluster(
    first: FirstMachine, data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "is_on_this_machine", lambda _: False)
    token = await first.token()
    with joining.claim_service_addresses(token.server):
        with pytest.raises(JoinError, match=r"another node of .* runs on this machine"):
            await enter(data, token)
        assert list(data.pki.iterdir()) == []
        joining.claim_service_addresses("https://192.0.2.1:7443").close()  # of another cluster
    for given in (token, None):  # it ends its claim
        await enter(data, given)


async def test_a_machine_that_joins_says_what_is_missing(
    first: FirstMachine, data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation_check, "isolation_warnings", lambda: ["WARNING: no sandbox"])
    assert "WARNING: no sandbox" in await enter(data, await first.token())


async def test_a_join_that_was_killed_continues_with_its_key(
    first: FirstMachine, data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, wait = await first.token(), certificates.wait_issued

    async def killed(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(certificates, "wait_issued", killed)
    with pytest.raises(KeyboardInterrupt):
        await asyncio.get_running_loop().run_in_executor(None, _join_uncaught, data, token)
    monkeypatch.setattr(certificates, "wait_issued", wait)
    key = (data.pki / joining.KEY_FILE).read_text()
    await join(data, token)
    assert key in (data.pki / CLIENT_FILE).read_text()
    found = await first.server.get(CSRS.path())
    assert len(found["items"]) == 1
    # It was killed again, and gets another name.
    write_private(data.pki / joining.KEY_FILE, key.encode())
    await join(data, token, "third")
    names = _load(data.pki / CLIENT_FILE).certificate.subject.rfc4514_string()
    assert "system:node:third" in names
    assert not (data.pki / joining.KEY_FILE).exists()


async def test_a_name_that_a_node_has_is_refused_until_the_node_is_deleted(
    first: FirstMachine, data: DataDir
) -> None:
    await first.server.create("/api/v1/nodes", {"metadata": {"name": "second"}})
    token = await first.token()
    with pytest.raises(JoinError, match="node second exists: choose another name, or delete it"):
        await join(data, token)
    await first.server.request("DELETE", "/api/v1/nodes/second")
    await join(data, token)


async def test_a_node_renews_its_certificates_and_its_client_uses_them(
    first: FirstMachine, data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    membership = await join(data, await first.token())
    await first.server.create("/api/v1/nodes", {"metadata": {"name": "second"}})
    credentials = load_credentials(str(joining.write_kubeconfig(data, membership)))
    identity = NodeIdentity(node="second", address="192.0.2.7")
    async with Client(credentials, user_agent="tests") as client:
        node = NodeCertificates(client, data.pki, identity, clock=SystemClock())
        await node.ensure_serving()
        old = {name: _load(data.pki / name) for name in (CLIENT_FILE, SERVING_FILE)}
        for pair in old.values():
            lifetime = pair.certificate.not_valid_after_utc - datetime.now(UTC)
            assert timedelta(days=89) < lifetime < timedelta(days=91)
            assert not certificates.is_due(pair, now=datetime.now(UTC) + timedelta(days=59))
            assert certificates.is_due(pair, now=datetime.now(UTC) + timedelta(days=61))
        await _renew(node)
        assert _serials(data) == [pair.certificate.serial_number for pair in old.values()]
        monkeypatch.setattr(certificates, "is_due", lambda *_, **__: True)
        await _renew(node)
        assert not set(_serials(data)) & {each.certificate.serial_number for each in old.values()}
    assert stat.S_IMODE((data.pki / CLIENT_FILE).stat().st_mode) == 0o600


async def test_a_client_opens_connections_with_a_renewed_certificate(
    first: FirstMachine, data: DataDir, tmp_path: Path
) -> None:
    membership = await join(data, await first.token())
    other = DataDir(tmp_path / "other")
    other.lock()
    other.unlock()
    await join(other, await first.token(), "other")
    credentials = load_credentials(str(joining.write_kubeconfig(data, membership)))
    options = ClientOptions(keepalive=0.0)
    async with Client(credentials, user_agent="tests", options=options) as client:
        assert await _user(client) == "system:node:second"
        os.replace(other.pki / CLIENT_FILE, data.pki / CLIENT_FILE)

        async def is_used() -> bool:  # once the idle connection is closed
            return await _user(client) == "system:node:other"

        await wait_until_true(is_used)
        write_private(data.pki / CLIENT_FILE, b"malformed")
        assert await _user(client) == "system:node:other", "an invalid file changes nothing"


async def test_a_wrong_clock_is_named(first: FirstMachine, data: DataDir) -> None:
    ca = x509.load_pem_x509_certificate((first.root / "pki" / "ca.crt").read_bytes())
    now = datetime.now(UTC)
    assert joining.clock_problem(ca, now) == ""
    for wrong in (now - timedelta(days=30), now + timedelta(days=36500)):
        problem = joining.clock_problem(ca, wrong)
        assert f"the clock of this machine is at {wrong:%FT%TZ}" in problem


async def test_a_revoked_node_is_refused_at_once_and_for_good(
    first: FirstMachine, data: DataDir, tmp_path: Path
) -> None:
    membership = await join(data, await first.token())
    await first.server.create("/api/v1/nodes", {"metadata": {"name": "second"}})
    credentials = load_credentials(str(joining.write_kubeconfig(data, membership)))
    other = DataDir(tmp_path / "other")
    other.lock()
    other.unlock()
    async with Client(credentials, user_agent="tests") as client:
        assert await _user(client) == "system:node:second"
        exists: list[bool] = []
        for name in ("earlier", "second", "second"):  # again, and a node that does not exist
            command = ["nodes", "revoke", name, "--data-dir", str(first.root)]
            outcome = await asyncio.to_thread(CliRunner().invoke, app, command)
            assert (outcome.exit_code, outcome.stdout) == (0, f"revoked {name}\n")
            exists.append("there is no node" not in outcome.stderr)
        assert exists == [False, True, False]
        with pytest.raises(UnauthorizedError):
            await _user(client)
    assert (await first.server.request("GET", "/api/v1/nodes/second")).status == 404
    for token in (None, await first.token()):  # of a restart, also with a new token
        with pytest.raises(JoinError, match=f"second: it was revoked .* delete {data.root}, and"):
            await enter(data, token)
    with pytest.raises(JoinError, match="certificates of node second are revoked: choose another"):
        await join(other, await first.token())
    third = await join(other, await first.token(), "third")
    credentials = load_credentials(str(joining.write_kubeconfig(other, third)))
    async with Client(credentials, user_agent="tests") as client:
        assert await _user(client) == "system:node:third"
    command = ["nodes", "revoke", node_name(), "--data-dir", str(first.root)]
    outcome = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert outcome.exit_code == 1
    assert "is the node of this machine" in outcome.output


async def test_a_watch_of_a_revoked_node_ends_before_the_next_event(
    first: FirstMachine, data: DataDir
) -> None:
    membership = await join(data, await first.token())
    await first.server.create("/api/v1/nodes", {"metadata": {"name": "second"}})
    credentials = load_credentials(str(joining.write_kubeconfig(data, membership)))
    path = "/api/v1/nodes?watch=true&fieldSelector=metadata.name%3Dsecond"
    lines: list[bytes] = []
    async with Client(credentials, user_agent="tests") as client:
        with pytest.raises(ConnectionLostError):
            async with client.watch_lines(path) as batches:
                async for batch in batches:
                    lines.extend(bytes(line) for line in batch)
                    if len(lines) == 1:  # it deletes the node, which the watch would show
                        command = ["nodes", "revoke", "second", "--data-dir", str(first.root)]
                        outcome = await asyncio.to_thread(CliRunner().invoke, app, command)
                        assert outcome.exit_code == 0
                    else:
                        break
    assert [b'"ADDED"' in line for line in lines] == [True]


async def test_a_machine_that_has_joined_starts_while_the_first_one_is_off(data: DataDir) -> None:
    network = Network(host="127.0.0.1", listener=None)
    root = data.root.parent / "first"
    async with embedded_server(root, network=network) as server:
        await join(data, await FirstMachine(server, root).token())
    assert "node second of" in await enter(data, None)


async def test_a_server_that_cannot_be_reached_is_named_with_what_to_check(
    first: FirstMachine, data: DataDir
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    token = await first.token()
    with pytest.raises(JoinError, match=f"127.0.0.1:{port}.*`batholith up --listen`"):
        await join(data, replace(token, port=port))
    assert not data.node_json.exists()


async def test_tokens_are_created_listed_and_deleted_by_commands(first: FirstMachine) -> None:
    async def run(*arguments: str) -> str:
        command = ["token", *arguments, "--data-dir", str(first.root)]
        outcome = await asyncio.to_thread(CliRunner().invoke, app, command)
        assert outcome.exit_code == 0, outcome.output
        return outcome.output

    created = await run("create", "--ttl", "0", "--description", "for the laptop")
    command, _, token = created.strip().rpartition(" ")
    address = f"127.0.0.1:{first.server.running.port}"
    assert command == "batholith join"
    assert token.endswith(f".{pki.ca_hash(first.root / 'pki')}@{address}")
    identity, secret, *_ = token.split(".")
    accepted = await first.server.request("GET", CSRS.path(), token=f"{identity}.{secret}")
    assert accepted.status == 200
    listed = await run("list")
    assert secret not in listed
    assert listed.splitlines()[1].split(maxsplit=2) == [identity, "never", "for the laptop"]
    await run("delete", identity)
    assert len((await run("list")).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("abc", "the token has not the form"),
        ("07401b.f395accd246ae52d@192.0.2.1", "the token has not the form"),
        (f"07401b.f395accd246ae52d.{'0' * 64}@first", "is no IPv4 address"),
        (f"07401b.f395accd246ae52d.{'0' * 64}@127.0.0.1", "no address at which other machines"),
        (f"07401b.f395accd246ae52d.{'0' * 64}@192.0.2.1:x", "is no IPv4 address"),
    ],
)
def test_a_malformed_token_is_rejected_and_not_shown(text: str, problem: str) -> None:
    outcome = CliRunner().invoke(app, ["join", text])
    assert outcome.exit_code != 0
    assert problem in outcome.output
    assert "f395accd246ae52d" not in outcome.output


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1:7443", "::1", "example.com"])
def test_the_api_server_listens_on_named_addresses_only(address: str) -> None:
    outcome = CliRunner().invoke(app, ["up", "--listen", address])
    assert outcome.exit_code != 0
    assert "address" in outcome.output


def test_a_joined_node_has_no_directories_of_claims() -> None:
    spec = {"csi": {"driver": DIR_PROVISIONER, "volumeHandle": "u"}}
    volume = msgspec.convert({"metadata": {"name": "v"}, "spec": spec}, PersistentVolume)
    assert claim_volume("u", volume, has_dirs=True).error == ""
    assert "machine of the API server" in claim_volume("u", volume, has_dirs=False).error


def test_an_expired_certificate_identifies_nobody() -> None:
    now = datetime.now(UTC)
    subject = Subject(name="ada", organizations=("a",), expires_at=now)
    found = certificate_user(subject, now)
    assert found is not None
    assert (found.name, found.groups) == ("ada", ("a", "system:authenticated"))
    assert certificate_user(subject, now + timedelta(seconds=1)) is None
    assert certificate_user(replace(subject, name=""), now) is None


async def _user(client: Client) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    review = await client.post(path, body, view=dict)
    return str(review["status"]["userInfo"]["username"])


def _serials(data: DataDir) -> list[int]:
    return [
        _load(data.pki / name).certificate.serial_number for name in (CLIENT_FILE, SERVING_FILE)
    ]


def _join_uncaught(data: DataDir, token: JoinToken) -> None:
    joining.join(data, token, "second")


def _load(path: Path) -> CertKeyPair:
    found = certificates.load(path)
    assert found is not None
    return found


async def _renew(node: NodeCertificates) -> None:
    for signer in SIGNERS:
        assert await node.renew_if_due(signer)
