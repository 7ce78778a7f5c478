"""Kubeconfig files, in-cluster files, TLS, and credential plugins."""

import base64
import datetime
import os
import ssl
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.aiohttp_servers import stop_server

from batholith.kube.client.auth import (
    REFRESH_INTERVAL,
    ExecCredentialSource,
    TokenFileSource,
    resolve_credentials,
    tls_context,
)
from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials, in_cluster_credentials, load_credentials
from batholith.kube.errors import ConfigError, ConnectionLostError
from batholith.kube.timing import Timing


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def write(path: Path, *, user: dict[str, Any] | None = None, **cluster: Any) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "there", "context": {"cluster": "other", "user": "u"}},
        ],
        "clusters": [
            {"name": "c", "cluster": {"server": "https://one:6443/", **cluster}},
            {"name": "other", "cluster": {"server": "https://two:6443"}},
        ],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


@pytest.fixture(autouse=True)
def no_config_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_inline_data_and_files_are_read_with_paths_relative_to_the_kubeconfig(
    tmp_path: Path,
) -> None:
    user = {"client-certificate-data": b64("CERT"), "client-key": "keys/k.pem", "token": "t0p"}
    path = write(
        tmp_path / "config",
        user=user,
        **{"certificate-authority": "ca.pem", "tls-server-name": "api", "proxy-url": "http://p:1"},
    )
    found = load_credentials(path)
    assert found == Credentials(
        server="https://one:6443",
        namespace="team",
        ca_file=str(tmp_path / "ca.pem"),
        tls_server_name="api",
        proxy="http://p:1",
        cert_data=b"CERT",
        key_file=str(tmp_path / "keys/k.pem"),
        token="t0p",
    )


def test_secrets_are_not_in_the_repr() -> None:
    shown = repr(Credentials(server="x", token="s3cret", password="s3cret", key_data=b"s3cret"))
    assert "s3cret" not in shown


def test_named_context_is_used(tmp_path: Path) -> None:
    path = write(tmp_path / "config", user={"username": "me", "password": "pw"})
    found = load_credentials(path, context="there")
    assert (found.server, found.namespace, found.username) == ("https://two:6443", "default", "me")


def test_impersonation_becomes_headers_and_unsupported_fields_are_rejected(tmp_path: Path) -> None:
    path = write(tmp_path / "config", user={"as": "jo", "as-groups": ["a", "b"]})
    assert load_credentials(path).impersonate == (
        ("Impersonate-User", "jo"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
    )
    write(tmp_path / "config", user={"as": "jo", "as-user-extra": {"x": ["y"]}})
    with pytest.raises(ConfigError, match="as-user-extra"):
        load_credentials(path)


def test_first_kubeconfig_file_of_the_environment_takes_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(
        yaml.safe_dump({"clusters": [{"name": "c", "cluster": {"server": "http://mine"}}]})
    )
    write(second, user={"tokenFile": "token"})
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'absent'}:{first}:{second}")
    found = load_credentials()
    assert (found.server, found.token_file) == ("http://mine", str(tmp_path / "token"))


def test_home_kubeconfig_precedes_in_cluster_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    directory = tmp_path / "home" / ".kube"
    directory.mkdir(parents=True)
    write(directory / "config")
    assert load_credentials().server == "https://one:6443"


def test_user_without_home_uses_in_cluster_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # whom no list of users has
    with pytest.raises(ConfigError, match="not in a cluster"):
        load_credentials()


def test_in_cluster_credentials_have_server_namespace_and_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    for name, text in {"token": "t", "ca.crt": "CA", "namespace": "ns\n"}.items():
        (tmp_path / name).write_text(text)
    found = in_cluster_credentials(tmp_path)
    assert (found.server, found.namespace) == ("https://[fd00::1]:6443", "ns")
    assert (found.token_file, found.ca_file) == (f"{tmp_path}/token", f"{tmp_path}/ca.crt")
    with pytest.raises(ConfigError, match="no service account token"):
        in_cluster_credentials(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not YAML"),
        ("[]", "no mapping"),
        ("", "no current-context"),
        ("current-context: x", "no context named 'x'"),
        (
            "{current-context: x, contexts: [{name: x, context: {cluster: y}}]}",
            "no cluster named 'y'",
        ),
        (
            "{current-context: x, contexts: [{name: x, context: {cluster: y}}],"
            " clusters: [{name: y, cluster: {server: 'ftp://z'}}]}",
            "no http or https address",
        ),
    ],
)
def test_invalid_kubeconfig_error_names_file_and_problem(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        load_credentials(str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("how", ["client-certificate", "client-certificate-data"])
def test_certificate_without_key_is_rejected(tmp_path: Path, how: str) -> None:
    path = write(tmp_path / "config", user={how: b64("CERT"), "token": "t0p"})
    with pytest.raises(ConfigError, match="client-certificate without client-key"):
        load_credentials(path)


def test_missing_credentials_error_names_all_sources() -> None:
    with pytest.raises(ConfigError, match="not in a cluster"):
        load_credentials()
    with pytest.raises(ConfigError, match="cannot read"):
        load_credentials("/does/not/exist")


async def test_token_file_is_reread_after_a_minute_and_kept_if_deleted(
    tmp_path: Path,
) -> None:
    now = 0.0
    token = tmp_path / "token"
    token.write_text("one")
    token.chmod(0o600)
    identity = TokenFileSource(str(token), Timing(monotonic=lambda: now))
    assert await identity.header() == "Bearer one"
    token.write_text("two")
    now = 59.0
    assert await identity.header() == "Bearer one"
    now = 61.0
    assert await identity.header() == "Bearer two"
    token.unlink()
    now = 200.0
    assert await identity.header() == "Bearer two"
    with pytest.raises(ConfigError, match="cannot read token"):
        await TokenFileSource(str(token), Timing()).header()


async def test_password_is_sent_as_basic_authorization() -> None:
    credentials = Credentials(server="http://x", username="me", password="pw")
    _, identity = await resolve_credentials(credentials, Timing())
    assert await identity.header() == f"Basic {b64('me:pw')}"


@pytest.mark.process
async def test_exec_plugin_provides_the_token(tmp_path: Path) -> None:
    script = tmp_path / "plugin.py"
    script.write_text(
        "import json\n"
        "kind = {'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential'}\n"
        "print(json.dumps({**kind, 'status': {'token': 'minted'}}))\n"
    )
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(script)],
    }
    found = load_credentials(write(tmp_path / "config", user={"exec": plugin}))
    assert found.plugin == (str(tmp_path / "config"), "here")
    _, identity = await resolve_credentials(found, Timing())
    assert await identity.header() == "Bearer minted"
    script.write_text("raise SystemExit(1)")
    with pytest.raises(ConfigError, match="gave nothing"):
        await resolve_credentials(found, Timing())


async def test_failing_plugin_keeps_the_token_and_is_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Loader:
        asked = 0

        async def load_and_set(self, configuration: Any) -> None:
            self.asked += 1
            if self.asked == 1:
                raise RuntimeError("no network")
            configuration.api_key["BearerToken"] = "Bearer second"

    now = [0.0]
    configuration = SimpleNamespace(api_key={"BearerToken": "Bearer first"})
    identity = ExecCredentialSource(Loader(), configuration, Timing(monotonic=lambda: now[0]))
    identity.invalidate()
    assert await identity.header() == "Bearer first"
    assert "no network" in vars(caplog.records[0])["error"]
    now[0] = REFRESH_INTERVAL
    assert await identity.header() == "Bearer second"


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """Create a self-signed certificate for *name*; return (certificate, key)."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_path, key_path = directory / f"{name}.crt", directory / f"{name}.key"
    cert_path.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return cert_path, key_path


async def test_tls_verifies_ca_and_server_name_and_sends_client_certificate(
    tmp_path: Path,
) -> None:
    cert, key = certificate(tmp_path, "api.test")
    mine, my_key = certificate(tmp_path, "me.test")
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(mine))
    server_tls.load_cert_chain(cert, key)
    server_tls.verify_mode = ssl.CERT_REQUIRED

    async def who(request: web.Request) -> web.Response:
        assert request.transport is not None
        peer = request.transport.get_extra_info("peercert")
        return web.json_response({"subject": peer["subject"][0][0][1]})

    application = web.Application()
    application.router.add_get("/version", who)
    runner = web.AppRunner(application, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_tls).start()
    good: dict[str, Any] = {
        "server": f"https://127.0.0.1:{runner.addresses[0][1]}",
        "ca_data": cert.read_bytes(),
        "tls_server_name": "api.test",
        "cert_data": mine.read_bytes(),
        "key_file": str(my_key),
    }
    for changed, works in (
        ({}, True),
        ({"ca_data": b"", "ca_file": str(cert)}, True),
        ({"tls_server_name": ""}, False),
        ({"ca_data": mine.read_bytes()}, False),
        ({"ca_data": b"", "insecure": True, "tls_server_name": ""}, True),
    ):
        async with Client(Credentials(**{**good, **changed}), user_agent="t") as client:
            if works:
                assert await client.get_path("/version", view=dict) == {"subject": "me.test"}
            else:
                with pytest.raises(ConnectionLostError, match="certificate"):
                    await client.get_path("/version", view=dict)
    await stop_server(runner)


async def test_unix_socket_replaces_tls(tmp_path: Path) -> None:
    async def authority(request: web.Request) -> web.Response:
        return web.json_response({"host": request.headers["Host"]})

    application = web.Application()
    application.router.add_get("/version", authority)
    runner = web.AppRunner(application, shutdown_timeout=0.01)
    await runner.setup()
    path = tmp_path / "s"
    await web.UnixSite(runner, str(path)).start()
    credentials = Credentials(server="https://127.0.0.1:1", unix_socket=str(path))
    async with Client(credentials, user_agent="t") as client:
        assert await client.get_path("/version", view=dict) == {"host": "127.0.0.1:1"}
    await stop_server(runner)
    async with Client(credentials, user_agent="t") as client:
        with pytest.raises(ConnectionLostError):
            await client.post("/version", b"{}")


def test_malformed_certificate_raises_config_error() -> None:
    with pytest.raises(ConfigError, match="certificates for https://x"):
        tls_context(Credentials(server="https://x", ca_data=b"nonsense"))


def test_a_malformed_file_is_not_quoted_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("users:\n- token: s3cret: x\n")
    with pytest.raises(ConfigError, match=r"is not YAML \(line 2\)") as raised:
        load_credentials(str(path))
    assert "s3cret" not in str(raised.value)


def test_data_that_is_not_base64_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "config", user={"client-key-data": "%%%%"})
    with pytest.raises(ConfigError, match="client-key-data is not base64"):
        load_credentials(path)
