"""Listener of the REST API: TLS with certificate rotation, IPv6, plain HTTP."""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from cryptography.hazmat.primitives import serialization
from support.components import component, kubeconfig
from support.controller_api import ControllerApi
from support.polling import wait_until_true
from typer.testing import CliRunner

from batholith.api.serving.server import ApiSettings, serve
from batholith.cli.main import app
from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials, load_credentials
from batholith.machinery.serving_certificate import KeyPairFiles
from batholith.machinery.testing import FakeClock
from batholith.machinery.x509 import CertificateRequest, CertKeyPair, create_ca, issue_certificate
from batholith.model.job import Job
from batholith.model.names import COMMANDS, JOBS, NAMESPACES, PODGROUPS, QUEUES

NOW = datetime.now(UTC)
NOWHERE = Credentials(server="http://127.0.0.1:1")
HAS_IPV6 = socket.has_dualstack_ipv6() and Path("/proc/net/if_inet6").exists()
needs_ipv6 = pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")


@dataclass
class MountedSecret:
    """A mounted Secret of certificate and key, updated like the kubelet's."""

    directory: Path
    ca: CertKeyPair
    version: int = 0

    @property
    def pair(self) -> KeyPairFiles:
        return KeyPairFiles(certificate=self.directory / "tls.crt", key=self.directory / "tls.key")

    @property
    def ca_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.ca.certificate_pem.decode())

    def issue_certificate(self) -> CertKeyPair:
        hosts = ("127.0.0.1", "::1")
        request = CertificateRequest(subject="rest", validity=timedelta(days=1), hosts=hosts)
        return issue_certificate(self.ca, request, now=NOW)

    def write(self, certificate: bytes, key: bytes) -> None:
        self.version += 1
        data = self.directory / f"..{self.version}"
        data.mkdir(parents=True)
        (data / "tls.crt").write_bytes(certificate)
        (data / "tls.key").write_bytes(key)
        (self.directory / "..new").symlink_to(data.name)
        os.replace(self.directory / "..new", self.directory / "..data")
        for name in ("tls.crt", "tls.key"):
            if not (self.directory / name).is_symlink():
                (self.directory / name).symlink_to(f"..data/{name}")

    def rotate_ca(self) -> CertKeyPair:
        fresh = self.issue_certificate()
        self.write(fresh.certificate_pem, fresh.key_pem)
        return fresh


@pytest.fixture
def mount(tmp_path: Path) -> MountedSecret:
    return MountedSecret(tmp_path / "mount", create_ca("a", now=NOW, validity=timedelta(days=1)))


@contextlib.asynccontextmanager
async def https(mount: MountedSecret, clock: FakeClock, directory: Path) -> AsyncIterator[int]:
    """Serve the REST API with the certificate of *mount*; yield its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    settings = ApiSettings(
        store_url=f"sqlite:///{directory / 'api.db'}", listener=listener, certificate=mount.pair
    )
    async with ControllerApi(JOBS, COMMANDS, PODGROUPS, QUEUES) as api, api.client() as client:
        ready = asyncio.Event()
        serving = asyncio.create_task(serve(client, settings, clock=clock, ready=ready))
        try:
            await ready.wait()
            yield listener.getsockname()[1]
        finally:
            serving.cancel()
            await asyncio.wait((serving,))


async def served_certificate(mount: MountedSecret, port: int) -> bytes:
    """Return the certificate of a new connection, in DER."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=mount.ca_context)
    tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
    certificate = tls.getpeercert(binary_form=True)
    writer.transport.abort()
    assert certificate
    return certificate


def der(identity: CertKeyPair) -> bytes:
    return identity.certificate.public_bytes(serialization.Encoding.DER)


async def test_a_rotated_certificate_is_served_without_a_restart(
    mount: MountedSecret, tmp_path: Path
) -> None:
    first, clock = mount.rotate_ca(), FakeClock()
    async with https(mount, clock, tmp_path) as port:
        assert await served_certificate(mount, port) == der(first)
        connector = aiohttp.TCPConnector(ssl=mount.ca_context)
        async with aiohttp.ClientSession(connector=connector) as session:
            url = f"https://127.0.0.1:{port}/livez"
            async with session.get(url) as response:
                assert response.status == 200
            second = mount.rotate_ca()
            await clock.advance(5)
            assert await served_certificate(mount, port) == der(second)
            async with session.get(url) as response:
                assert response.status == 200, "open connections continue"


async def test_an_invalid_key_pair_is_logged_and_the_previous_one_is_kept(
    mount: MountedSecret, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, clock = mount.rotate_ca(), FakeClock()
    other = mount.issue_certificate()
    encrypted = other.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    async with https(mount, clock, tmp_path) as port:
        for certificate, key in (
            (other.certificate_pem, first.key_pem),
            (first.certificate_pem, other.key_pem),
            (first.certificate_pem, b""),
            (b"no certificate", first.key_pem),
            (other.certificate_pem, encrypted),
        ):
            caplog.clear()
            mount.write(certificate, key)
            await clock.advance(5)
            assert await served_certificate(mount, port) == der(first)
            (record,) = (each for each in caplog.records if each.levelno == logging.ERROR)
            assert record.getMessage() == "cannot reload files"
            await clock.advance(5)
        second = mount.rotate_ca()
        await clock.advance(5)
        assert await served_certificate(mount, port) == der(second)


def command_error(*arguments: str, directory: Path) -> str:
    """Return the command's error message; without credentials it always exits with one."""
    given = [
        "api",
        f"--store=sqlite:///{directory / 'api.db'}",
        f"--kubeconfig={directory / 'none'}",
    ]
    result = CliRunner().invoke(app, [*given, *arguments])
    assert result.exit_code == 1
    assert result.output.count("\n") == 1
    return result.output


REFUSED = "which is not loopback"
STARTED = "cannot read kubeconfig"


@pytest.mark.parametrize("address", ["0.0.0.0:0", ":0", pytest.param("[::]:0", marks=needs_ipv6)])
def test_plain_http_beyond_loopback_requires_insecure(address: str, tmp_path: Path) -> None:
    output = command_error(f"--listen-address={address}", directory=tmp_path)
    assert REFUSED in output
    assert "--insecure" in output
    assert STARTED in command_error(f"--listen-address={address}", "--insecure", directory=tmp_path)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:0", "localhost:0", pytest.param("[::1]:0", marks=needs_ipv6)]
)
def test_plain_http_on_loopback_requires_no_flag(address: str, tmp_path: Path) -> None:
    assert STARTED in command_error(f"--listen-address={address}", directory=tmp_path)


def test_an_inherited_listener_is_checked_likewise(tmp_path: Path) -> None:
    for address, expected in (("127.0.0.1", STARTED), ("0.0.0.0", REFUSED)):
        with socket.create_server((address, 0)) as listener:
            own = os.dup(listener.fileno())
            assert expected in command_error(f"--listen-fd={own}", directory=tmp_path)


def test_invalid_certificate_flags_are_reported_in_one_line(
    mount: MountedSecret, tmp_path: Path
) -> None:
    mount.write(mount.issue_certificate().certificate_pem, mount.issue_certificate().key_pem)
    crt, key = (f"--tls-cert-file={mount.pair.certificate}",
                f"--tls-private-key-file={mount.pair.key}")  # fmt: skip
    where = "--listen-address=127.0.0.1:0"
    assert "require each other" in command_error(where, crt, directory=tmp_path)
    assert "require each other" in command_error(where, key, directory=tmp_path)
    assert "--insecure has no effect" in command_error(
        where, crt, key, "--insecure", directory=tmp_path
    )


@pytest.mark.process
async def test_an_invalid_certificate_prevents_the_start(
    mount: MountedSecret, tmp_path: Path
) -> None:
    config = kubeconfig(tmp_path / "kubeconfig", NOWHERE)
    mount.write(mount.issue_certificate().certificate_pem, mount.issue_certificate().key_pem)
    async with component(
        "api", f"--kubeconfig={config}", f"--store=sqlite:///{tmp_path / 'api.db'}",
        "--listen-address=127.0.0.1:0", f"--tls-cert-file={mount.pair.certificate}",
        f"--tls-private-key-file={mount.pair.key}",
    ) as process:  # fmt: skip
        assert await process.wait_exit() == 1
    assert "cannot serve --tls-cert-file" in process.text
    assert "Traceback" not in process.text


@pytest.mark.process
@needs_ipv6
async def test_ipv6_addresses_are_served(mount: MountedSecret, tmp_path: Path) -> None:
    """With a certificate on ``[::1]``; dual-stack without a host."""
    mount.rotate_ca()
    config = kubeconfig(tmp_path / "kubeconfig", NOWHERE)
    api = ("api", f"--kubeconfig={config}", f"--store=sqlite:///{tmp_path / 'api.db'}")
    pair = (f"--tls-cert-file={mount.pair.certificate}",
            f"--tls-private-key-file={mount.pair.key}")  # fmt: skip
    async with component(*api, "--listen-address=[::1]:0", *pair) as process:
        port = await process.port("rest")
        await _wait_responds(f"https://[::1]:{port}/livez", mount.ca_context)
    async with component(*api, "--listen-address=:0", "--insecure") as process:
        port = await process.port("rest")
        for host in ("[::1]", "127.0.0.1"):
            await _wait_responds(f"http://{host}:{port}/livez", mount.ca_context)


async def _wait_responds(url: str, trust: ssl.SSLContext) -> None:
    async with aiohttp.ClientSession() as session:

        async def is_healthy() -> bool:
            async with session.get(url, ssl=trust) as response:
                return response.status == 200

        await wait_until_true(is_healthy)


@pytest.mark.process
@needs_ipv6
async def test_the_api_servers_kubeconfig_has_its_listen_address(
    tmp_path: Path,
) -> None:
    arguments = (f"--data-dir={tmp_path}", "--listen-address=[::1]:0")
    async with component("apiserver", *arguments) as process:
        await process.wait_ready()
        config = load_credentials(str(tmp_path / "kubeconfig"))
        assert config.server.startswith("https://[::1]:")
        async with Client(config, user_agent="tests") as client:
            assert await client.get(NAMESPACES, "default", view=Job)
