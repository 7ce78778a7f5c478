"""Where the client finds address and credentials, and where it sends them."""

import base64
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.operation_script import START

from batholith.client import Client, ConfigError
from batholith.client.credentials import PluginToken, TokenFile
from batholith.client.discovery import SERVICE_URL, Connection, Options, discover
from batholith.client.effects import Secret
from batholith.client.exec_plugin import ExecPlugin, PluginCredential
from batholith.client.kubeconfig import load_context
from batholith.client.timing import Timing
from batholith.local.agent.runtime.process_id import identify

URL = "https://api.example"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("KUBECONFIG", "BATHOLITH_API_URL", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


def find(tmp_path: Path, **options: Any) -> Connection:
    options.setdefault("service_account", tmp_path / "none")
    if "token" in options:
        options["token"] = Secret(options["token"])
    return discover(Options(**options), Timing())


def header(found: Connection) -> str:
    return found.credentials.fetch().reveal()


def kubeconfig(path: Path, user: dict[str, Any], **cluster: Any) -> Path:
    document = {
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "other", "context": {"cluster": "c", "user": "v"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": "https://k8s", **cluster}}],
        "users": [{"name": "u", "user": user}, {"name": "v", "user": {"token": "other"}}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    path.chmod(0o600)
    return path


def data_dir(path: Path, *, pid: int | None = None, port: int = 7480) -> Path:
    """A directory of ``batholith up``, which runs as this process."""
    kubeconfig(path / "kubeconfig", {"token": "local"})
    this = identify(os.getpid())
    assert this is not None
    supervisor = {"pid": pid or this.pid, "start_time": this.start_time, "boot": this.boot}
    state = {"version": "1", "supervisor": supervisor, "ports": {"rest": port}, "ready": True}
    (path / "up.json").write_text(json.dumps(state))
    return path


def test_url_and_token_are_used_as_given(tmp_path: Path) -> None:
    found = find(tmp_path, url=f"{URL}/", token="secret")
    assert (found.url, header(found), found.namespace) == (URL, "Bearer secret", "default")


def test_the_url_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATHOLITH_API_URL", URL)
    assert find(tmp_path, token="secret").url == URL
    assert find(tmp_path, url="https://given", token="secret").url == "https://given"


def test_a_context_of_a_kubeconfig_requires_a_url(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", {"token": "secret"})
    found = find(tmp_path, url=URL, kubeconfig=path)
    assert (header(found), found.namespace) == ("Bearer secret", "team")
    assert header(find(tmp_path, url=URL, kubeconfig=path, context="other")) == "Bearer other"
    assert find(tmp_path, url=URL, kubeconfig=path, namespace="mine").namespace == "mine"
    with pytest.raises(ConfigError, match="URL of the REST API is unknown"):
        find(tmp_path, kubeconfig=path)
    with pytest.raises(ConfigError, match="no context named 'absent'"):
        find(tmp_path, url=URL, kubeconfig=path, context="absent")


def test_the_kubeconfigs_of_the_environment_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kubeconfig(tmp_path / "a", {"token": "first"})
    second = kubeconfig(tmp_path / "b", {"token": "second"})
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/absent{os.pathsep}{first}{os.pathsep}{second}")
    assert header(find(tmp_path, url=URL)) == "Bearer first"


def test_a_running_cluster_of_this_machine_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = data_dir(tmp_path / "data" / "batholith", port=1234)
    for options in ({}, {"data_dir": directory}, {"kubeconfig": directory / "kubeconfig"}):
        found = find(tmp_path, **options)
        assert (found.url, header(found)) == ("http://127.0.0.1:1234", "Bearer local")
    monkeypatch.setenv("KUBECONFIG", str(directory / "kubeconfig"))
    assert find(tmp_path).url == "http://127.0.0.1:1234"


def test_tokens_of_other_clusters_are_not_sent_to_the_cluster_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir(tmp_path / "data" / "batholith")
    other = kubeconfig(tmp_path / "config", {"token": "production"})
    with pytest.raises(ConfigError, match="unknown"):
        find(tmp_path, kubeconfig=other)
    monkeypatch.setenv("KUBECONFIG", str(other))
    assert header(find(tmp_path)) == "Bearer local"


def test_a_port_that_may_be_another_programs_gets_no_token(tmp_path: Path) -> None:
    directory = data_dir(tmp_path / "stopped", pid=2**22 + 1)
    with pytest.raises(ConfigError, match="not running: start it by"):
        find(tmp_path, data_dir=directory)
    directory = data_dir(tmp_path / "shared")
    (directory / "up.json").chmod(0o666)
    with pytest.raises(ConfigError, match="not private"):
        find(tmp_path, data_dir=directory)
    (directory / "up.json").write_text("{}")
    (directory / "up.json").chmod(0o600)
    with pytest.raises(ConfigError, match="cannot read the port"):
        find(tmp_path, data_dir=directory)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://api.example", "plain HTTP to another host"),
        ("http://10.0.0.1:7480", "plain HTTP to another host"),
        ("http://localhost.example", "plain HTTP to another host"),
        ("ftp://api", "not http"),
        ("api.example", "not http"),
        ("https://user:password@api", "contains credentials"),
        ("https://api/?x=1", "query"),
    ],
)
def test_unsafe_addresses_are_rejected(tmp_path: Path, url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        find(tmp_path, url=url, token="secret")
    assert "password" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1:7480", "localhost", "[::1]:80", "127.1.2.3"])
def test_plain_http_on_this_machine(tmp_path: Path, host: str) -> None:
    assert find(tmp_path, url=f"http://{host}", token="t").tls is None


def test_plain_http_elsewhere_is_an_explicit_choice(tmp_path: Path) -> None:
    assert find(tmp_path, url="http://api", token="t", insecure=True).url == "http://api"


def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("first\n")
    (account / "namespace").write_text("team")
    found = find(tmp_path, service_account=account)
    assert (found.url, found.namespace, header(found)) == (SERVICE_URL, "team", "Bearer first")
    (account / "token").write_text("second")
    assert (found.credentials.current(), header(found)) == (None, "Bearer second")


def test_the_service_is_that_of_the_manifests() -> None:
    root = Path(__file__).parents[2]
    documents = yaml.safe_load_all((root / "manifests/base/api.yaml").read_text())
    service = next(each for each in documents if each["kind"] == "Service")["metadata"]
    assert f"https://{service['name']}.{service['namespace']}.svc" == SERVICE_URL


def test_a_token_file_that_is_exchanged_keeps_the_last_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    source = TokenFile(path)
    with pytest.raises(ConfigError, match="cannot read token file"):
        source.fetch()
    path.write_text("one")
    first = source.fetch()
    path.unlink()
    assert source.fetch() == first
    path.write_text("two")
    assert source.invalidate(first)
    assert not source.invalidate(source.fetch())
    path.write_text("")
    with pytest.raises(ConfigError, match="is empty"):
        source.fetch()
    path.write_text("a\nb: c")
    with pytest.raises(ConfigError, match="characters"):
        source.fetch()


def test_a_user_without_credentials(tmp_path: Path) -> None:
    for user, message in (
        ({}, "neither token nor certificate"),
        ({"auth-provider": {"name": "gcp"}}, "auth-provider is not supported"),
        ({"exec": {"apiVersion": "v0", "command": "x"}}, "exec.apiVersion must be one of"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1"}}, "exec.command is missing"),
        ({"client-certificate-data": "%"}, "not base64"),
        ({"client-certificate-data": "QQ==", "client-key-data": "QQ=="}, "cannot load the client"),
    ):
        path = kubeconfig(tmp_path / "config", user)
        with pytest.raises(ConfigError, match=message):
            find(tmp_path, url=URL, kubeconfig=path)


def test_a_damaged_kubeconfig_is_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("users: [{token: secret-token\n: :")
    with pytest.raises(ConfigError) as caught:
        find(tmp_path, url=URL, kubeconfig=path)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_nothing_is_found(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no credentials: start a cluster"):
        find(tmp_path)


def test_the_client_shows_no_token() -> None:
    with Client(URL, token="secret-token") as client:
        assert repr(client) == f"<Client {URL}, namespace default>"
        assert "secret-token" not in repr(client._session)


PLUGIN = """
import json, os, sys
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
count = open(sys.argv[1]).read() if os.path.exists(sys.argv[1]) else ""
open(sys.argv[1], "w").write(count + "x")
status = {"token": f"{os.environ['PREFIX']}-{len(count)}-{sys.argv[2]}"}
status["expirationTimestamp"] = "2026-01-01T01:00:00Z"
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


def plugin_user(tmp_path: Path, *arguments: str, **spec: Any) -> dict[str, Any]:
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": ["-c", PLUGIN, str(tmp_path / "count"), *arguments],
            "env": [{"name": "PREFIX", "value": "token"}],
            **spec,
        }
    }


@pytest.mark.process
def test_a_credential_plugin_runs_without_a_shell_until_its_token_expires(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", plugin_user(tmp_path, "$(id);'"))
    now = START
    timing = Timing(now=lambda: now)
    source = discover(Options(url=URL, kubeconfig=path), timing).credentials
    assert source.current() is None
    first = source.fetch()
    assert (first.reveal(), source.current()) == ("Bearer token-0-$(id);'", first)
    now = START + timedelta(minutes=59, seconds=55)
    assert source.current() is None
    assert source.fetch().reveal().startswith("Bearer token-1-")
    now = START
    current = source.fetch()
    assert source.invalidate(first)  # Another thread has replaced it.
    assert source.current() == current
    assert source.invalidate(current)
    assert source.current() is None


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit(3)", "failed with exit code 3"),
        ("print('secret-token')", "printed no valid ExecCredential"),
        ('print(\'{"kind": "ExecCredential"}\')', "of version client.authentication"),
        (
            "import os; print(os.environ['KUBERNETES_EXEC_INFO'])",
            "printed neither token nor certificate",
        ),
    ],
)
def test_a_plugin_that_fails_is_reported_without_its_output(
    tmp_path: Path, code: str, message: str
) -> None:
    user = plugin_user(tmp_path, args=["-c", code])
    path = kubeconfig(tmp_path / "config", user)
    source = discover(Options(url=URL, kubeconfig=path), Timing()).credentials
    with pytest.raises(ConfigError, match=message) as caught:
        source.fetch()
    assert "secret" not in str(caught.value)


@pytest.mark.process
def test_a_missing_plugin_is_reported_with_its_hint(tmp_path: Path) -> None:
    user = plugin_user(tmp_path, command="./absent", installHint="install it")
    path = kubeconfig(tmp_path / "config", user)
    source = discover(Options(url=URL, kubeconfig=path), Timing()).credentials
    with pytest.raises(ConfigError, match=f"{tmp_path}/absent' not found: install it"):
        source.fetch()


def test_a_plugin_gets_the_cluster_that_it_asks_for(tmp_path: Path) -> None:
    ca = base64.b64encode(b"PEM").decode()
    user = plugin_user(tmp_path, provideClusterInfo=True)
    config = kubeconfig(tmp_path / "config", user, **{"certificate-authority-data": ca})
    plugin = load_context([config]).plugin
    assert plugin is not None
    expected = {"server": "https://k8s", "certificate-authority-data": ca}
    assert json.loads(plugin._info())["spec"] == {"interactive": False, "cluster": expected}
    assert "token" not in repr(plugin)


def test_certificates_of_a_plugin_are_used() -> None:
    used: list[PluginCredential] = []
    credential = PluginCredential(token=Secret(""), certificate="PEM", key=Secret("key"))

    class Plugin(ExecPlugin):
        def run(self) -> PluginCredential:
            return credential

    plugin = Plugin(command="x", api_version="v1")
    source = PluginToken(plugin, timing=Timing(), use_certificate=used.append)
    assert not source.fetch()
    assert (used, source.current()) == ([credential], Secret(""))
