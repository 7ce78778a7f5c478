"""Certificates, tokens and the kubeconfig of the embedded cluster."""

import ssl
import stat
from pathlib import Path

from batholith.kube.client import config
from batholith.local import kubeconfig, pki, tokens
from batholith.local.kubeconfig import ClusterAccess


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_certificates_are_made_once_and_for_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    made = pki.ensure(folder)
    assert mode(folder) == 0o700
    assert {mode(path) for path in folder.iterdir()} == {0o600}
    before = contents(folder)
    assert pki.ensure(folder) == made
    assert contents(folder) == before
    context = ssl.create_default_context(cafile=str(made.ca))
    for pair in (made.server, made.agent, made.client):
        context.load_cert_chain(pair.certificate, pair.key)


def test_a_new_name_or_a_damaged_key_renews_only_what_it_must(tmp_path: Path) -> None:
    made = pki.ensure(tmp_path)
    before = contents(tmp_path)
    pki.ensure(tmp_path, names=("batholith.example",))
    after = contents(tmp_path)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"apiserver.crt", "apiserver.key", "agent.crt", "agent.key"}
    made.client.key.write_bytes(b"broken")
    pki.ensure(tmp_path, names=("batholith.example",))
    again = contents(tmp_path)
    changed = {name for name in after if again[name] != after[name]}
    assert changed == {"apiserver-agent-client.crt", "apiserver-agent-client.key"}


def test_another_authority_signs_everything_anew(tmp_path: Path) -> None:
    pki.ensure(tmp_path)
    before = contents(tmp_path)
    (tmp_path / "ca.key").unlink()
    pki.ensure(tmp_path)
    after = contents(tmp_path)
    assert all(before[name] != after[name] for name in before)


def test_every_user_has_a_token_of_its_own_that_stays(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    made = tokens.ensure(path)
    assert mode(path) == 0o600
    assert len(set(made.by_user.values())) == len(tokens.USERS) == len(made.by_user)
    assert min(map(len, made.by_user.values())) >= 40
    assert tokens.ensure(path) == made


def test_the_kubeconfig_says_how_to_get_in(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    access = ClusterAccess(server="https://127.0.0.1:7443", ca=b"pem", user="admin", token="secret")
    kubeconfig.write(path, access)
    assert mode(path) == 0o600
    read = config.load_credentials(str(path))
    assert (read.server, read.ca_data, read.token) == (access.server, access.ca, access.token)
    assert read.namespace == "default"
