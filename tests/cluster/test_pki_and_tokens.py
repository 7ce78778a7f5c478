"""Certificates, tokens and the kubeconfig of the embedded cluster."""

import socket
import ssl
import stat
from pathlib import Path

import kubernetes as official

from batholith.cli.listeners import listen_locally
from batholith.kube.client import config
from batholith.local.supervisor import kubeconfig, pki, tokens
from batholith.local.supervisor.kubeconfig import ClusterAccess


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_certificates_are_issued_once_and_private(tmp_path: Path) -> None:
    directory = tmp_path / "pki"
    created = pki.ensure(directory)
    assert mode(directory) == 0o700
    assert {mode(path) for path in directory.iterdir()} == {0o600}
    before = contents(directory)
    assert pki.ensure(directory) == created
    assert contents(directory) == before
    context = ssl.create_default_context(cafile=str(created.ca))
    for pair in (created.server, created.agent, created.client):
        context.load_cert_chain(pair.certificate, pair.key)


def test_new_name_or_malformed_key_renews_only_affected_certificates(tmp_path: Path) -> None:
    created = pki.ensure(tmp_path)
    before = contents(tmp_path)
    pki.ensure(tmp_path, names=("batholith.example",))
    after = contents(tmp_path)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"apiserver.crt", "apiserver.key", "agent.crt", "agent.key"}
    created.client.key.write_bytes(b"broken")
    pki.ensure(tmp_path, names=("batholith.example",))
    again = contents(tmp_path)
    changed = {name for name in after if again[name] != after[name]}
    assert changed == {"apiserver-agent-client.crt", "apiserver-agent-client.key"}


def test_new_ca_reissues_all_certificates(tmp_path: Path) -> None:
    pki.ensure(tmp_path)
    before = contents(tmp_path)
    (tmp_path / "ca.key").unlink()
    pki.ensure(tmp_path)
    after = contents(tmp_path)
    # Tokens of pods that run stay valid, and other API servers have a separate authority.
    kept = {name for name in before if before[name] == after[name]}
    assert {name for name in kept if not name.startswith("front-proxy-")} == {"sa.key"}


def test_each_user_has_its_own_permanent_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    created = tokens.ensure(path)
    assert mode(path) == 0o600
    assert len(set(created.by_user.values())) == len(tokens.USERS) == len(created.by_user)
    assert min(map(len, created.by_user.values())) >= 40
    assert tokens.ensure(path) == created


def test_kubeconfig_contains_server_and_token(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    access = ClusterAccess(server="https://127.0.0.1:7443", ca=b"pem", user="admin", token="secret")
    kubeconfig.write(path, access)
    assert mode(path) == 0o600
    read = config.load_credentials(str(path))
    assert (read.server, read.ca_data, read.token) == (access.server, access.ca, access.token)
    assert read.namespace == "default"
    assert not read.unix_socket


def test_kubeconfig_names_the_unix_socket_of_components(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    access = ClusterAccess(
        server="https://127.0.0.1:7443",
        ca=b"pem",
        user="agent",
        token="secret",
        unix_socket=tmp_path / "apiserver.sock",
    )
    kubeconfig.write(path, access)
    read = config.load_credentials(str(path))
    assert (read.server, read.unix_socket) == (access.server, str(access.unix_socket))
    # Other clients read the file, too.
    other = official.config.new_client_from_config(str(path))  # type: ignore[no-untyped-call]
    assert other.configuration.host == access.server


def test_local_socket_is_private_and_replaces_that_of_a_killed_cluster(tmp_path: Path) -> None:
    path = tmp_path / "apiserver.sock"
    for _ in range(2):
        listener = listen_locally(path)
        assert listener is not None
        with listener, socket.socket(socket.AF_UNIX) as client:
            assert mode(path) == 0o600
            client.connect(str(path))
    assert listen_locally(tmp_path / ("x" * 108)) is None
