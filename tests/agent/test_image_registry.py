"""Pulls from registries: authentication, mirrors, platforms, broken connections, attacks."""

import asyncio
import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.images import ImageFiles, Layer, digest, image
from support.registry_server import PASSWORD, TOKEN, USER, RegistryServer, registry_server

from batholith.local.agent.images import references, registry
from batholith.local.agent.images.credentials import Credential, Endpoint, matching, parse_config
from batholith.local.agent.images.errors import ImageError
from batholith.local.agent.images.formats import architecture
from batholith.local.agent.images.puller import Registry, parse_registries
from batholith.local.agent.images.pulling import pull_in_process
from batholith.local.agent.images.registry import pull
from batholith.local.agent.images.store import ImageStore, StoredImage
from batholith.local.agent.images.unpacking import UnpackLimits
from batholith.local.supervisor import pki

pytestmark = pytest.mark.process

CREDENTIAL = Credential(USER, PASSWORD)
LIMITS = UnpackLimits(free=0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistryServer]:
    monkeypatch.setattr(registry, "RETRY_DELAY", 0.0)
    with registry_server() as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "data")


Pull = Callable[..., StoredImage]


@pytest.fixture
def pulled(server: RegistryServer, store: ImageStore) -> Pull:
    """Pull an image from the server, or from other URLs first."""

    def pull_image(
        name: str, *urls: str, credential: Credential | None = None, limits: UnpackLimits = LIMITS
    ) -> StoredImage:
        known = (credential,) if credential else ()
        bases = [*urls, f"http://{server.host}"]
        endpoints = [Endpoint(url, known) for url in bases]
        return pull(store, references.parse(name), endpoints, limits=limits)

    return pull_image


def is_empty(store: ImageStore) -> bool:
    """Return whether no image is stored and nothing incomplete is left."""
    return store.images() == [] and list((store.root / "tmp").iterdir()) == []


def test_image_is_pulled_by_tag_and_by_digest(
    server: RegistryServer, store: ImageStore, pulled: Pull
) -> None:
    files = image([Layer().file("a", "1"), Layer().file("b", "2")], {"Cmd": ["/a"]})
    name = server.add("team/app", "1", files)
    by_tag = pulled(name)
    assert by_tag.image_id == f"{server.host}/team/app@{files.digest}"
    assert by_tag.process.cmd == ("/a",)
    assert (store.layer_dir(by_tag.layers[1]) / "b").read_text() == "2"
    before = len(server.paths("/blobs/"))
    by_digest = pulled(f"{server.host}/team/app@{files.digest}")
    assert by_digest.image_id == by_tag.image_id
    assert len(server.paths("/blobs/")) == before + 1, "the configuration; no layer again"
    assert store.find(references.parse(f"{server.host}/team/app:9@{files.digest}")) == by_digest


def test_image_for_this_machine_is_selected(server: RegistryServer, pulled: Pull) -> None:
    mine, other = image([Layer().file("a")]), image([], os="plan9")
    server.add("app", "mine", mine)
    index = json.dumps({
        "schemaVersion": 2,
        "manifests": [
            {"digest": each.digest, "size": 1, "platform": {"os": name, "architecture": machine}}
            for each, name, machine in (
                (other, "linux", "vax"), (mine, "linux", architecture()),
            )
        ],
    }).encode()  # fmt: skip
    server.contents["/v2/app/manifests/1"] = index
    assert pulled(f"{server.host}/app:1").image_id.endswith(digest(index))


@pytest.mark.parametrize("authentication", ["basic", "bearer"])
def test_credentials_are_used_when_demanded(
    server: RegistryServer, store: ImageStore, pulled: Pull, authentication: str
) -> None:
    server.authentication = authentication
    name = server.add("app", "1", image([Layer().file("a")]))
    with pytest.raises(ImageError, match=r"401|requires credentials"):
        pulled(name)
    with pytest.raises(ImageError, match="401"):
        pulled(name, credential=Credential(USER, "wrong"))
    assert is_empty(store)
    assert pulled(name, credential=CREDENTIAL).name == name
    if authentication == "bearer":
        [token, *_] = server.paths("/token")
        assert "scope=repository%3Aapp%3Apull" in token
        assert "service=tests" in token


def test_credentials_are_not_sent_undemanded(server: RegistryServer, pulled: Pull) -> None:
    pulled(server.add("app", "1", image([Layer().file("a")])), credential=CREDENTIAL)
    assert not any("authorization" in headers for _, headers in server.requests)


@pytest.mark.parametrize("authentication", ["basic", "bearer"])
def test_redirects_to_other_hosts_get_no_credentials(
    server: RegistryServer, pulled: Pull, authentication: str
) -> None:
    server.authentication = authentication
    files = image([Layer().file("a")])
    name = server.add("app", "1", files)
    with registry_server() as other:
        other.contents = dict(server.contents)

        def redirect_blobs(handler: Any) -> bool:
            if "/blobs/" not in handler.path:
                return False
            handler.send(307, headers={"Location": f"http://{other.host}{handler.path}"})
            return True

        server.handle = redirect_blobs
        pulled(name, credential=CREDENTIAL)
        assert len(other.requests) == 2
        assert not any("authorization" in headers for _, headers in other.requests)


def test_redirects_on_the_same_host_keep_credentials(server: RegistryServer, pulled: Pull) -> None:
    server.authentication = "basic"
    name = server.add("app", "1", image([Layer().file("a")]))

    def redirect_once(handler: Any) -> bool:
        if "/blobs/" not in handler.path or handler.path.startswith("/moved"):
            return False
        server.contents[f"/moved{handler.path}"] = server.contents[handler.path]
        handler.send(302, headers={"Location": f"/moved{handler.path}"})
        return True

    server.handle = redirect_once
    assert pulled(name, credential=CREDENTIAL).name == name


@pytest.mark.parametrize("location", ["", "ftp://127.0.0.1/x", "file:///etc/passwd"])
def test_redirects_elsewhere_fail(
    server: RegistryServer, store: ImageStore, pulled: Pull, location: str
) -> None:
    name = server.add("app", "1", image([Layer().file("a")]))

    def redirect(handler: Any) -> bool:
        handler.send(302, headers={"Location": location})
        return True

    server.handle = redirect
    with pytest.raises(ImageError, match="redirect"):
        pulled(name)
    assert len(server.requests) <= 6
    assert is_empty(store)


def test_broken_download_continues_where_it_ended(server: RegistryServer, pulled: Pull) -> None:
    files = image([Layer().file("a", bytes(range(256)) * 4000)], compress=False)
    name = server.add("app", "1", files)
    layer = files.manifest["layers"][0]["digest"]
    breaks = iter([300_000, 200_000])

    def break_off(handler: Any) -> bool:
        size = next(breaks, 0) if layer in handler.path else 0
        if not size:
            return False
        start = int(handler.headers.get("Range", "bytes=0-")[6:-1])
        data = files.blobs[layer][start:]
        handler.send(206 if start else 200, data[:size], length=len(data))
        handler.close_connection = True
        return True

    server.handle = break_off
    pulled(name)
    ranges = [headers.get("range") for path, headers in server.requests if layer in path]
    assert ranges == [None, "bytes=300000-", "bytes=500000-"]


def test_download_begins_again_without_support_for_ranges(
    server: RegistryServer, pulled: Pull
) -> None:
    files = image([Layer().file("a", bytes(range(256)) * 400)], compress=False)
    name = server.add("app", "1", files)
    layer = files.manifest["layers"][0]["digest"]
    broken = iter([True])

    def ignore_ranges(handler: Any) -> bool:
        if layer not in handler.path:
            return False
        data = files.blobs[layer]
        is_broken = next(broken, False)
        handler.send(200, data[: 50_000 if is_broken else len(data)], length=len(data))
        handler.close_connection = is_broken
        return True

    server.handle = ignore_ranges
    assert pulled(name).name == name


@pytest.mark.parametrize("failures", [3, 4])
def test_failures_of_the_server_are_retried_a_few_times(
    server: RegistryServer, store: ImageStore, pulled: Pull, failures: int
) -> None:
    name = server.add("app", "1", image([Layer().file("a")]))
    left = iter(range(failures))

    def fail(handler: Any) -> bool:
        if next(left, None) is None:
            return False
        handler.send(503)
        return True

    server.handle = fail
    if failures == 3:
        assert pulled(name).name == name
        return
    with pytest.raises(ImageError, match="status 503"):
        pulled(name)
    assert len(server.requests) == 4
    assert is_empty(store)


def without(files: ImageFiles, server: RegistryServer, key: str, data: bytes) -> str:
    """Serve an image with another content of one blob."""
    name = server.add("app", "1", files)
    path = {
        "layer": f"blobs/{files.manifest['layers'][0]['digest']}",
        "config": f"blobs/{files.manifest['config']['digest']}",
        "manifest": "manifests/1",
    }[key]
    server.contents[f"/v2/app/{path}"] = data
    return name


@pytest.mark.parametrize(
    ("key", "data", "message"),
    [
        ("layer", b"x" * 10, "ended after 10 of"),
        ("layer", bytes(100_000), "more than its"),
        ("config", b"{}", "not the digest"),
        ("config", bytes(5 << 20), "larger than"),
        ("manifest", bytes(5 << 20), "larger than"),
        ("manifest", b"<html>", "malformed"),
        ("manifest", b"[]", "malformed"),
        ("manifest", b"{}", "no config and layers"),
        ("manifest", b'{"manifests": [{"digest": "../../x", "size": 1}]}', "invalid digest"),
        ("manifest", b'{"manifests": []}', "no image for linux/"),
        ("manifest", b'{"config": {"digest": "../x", "size": 1}, "layers": []}', "not a digest"),
    ],
)  # fmt: skip
def test_other_content_is_not_stored(
    server: RegistryServer, store: ImageStore, pulled: Pull, key: str, data: bytes, message: str
) -> None:
    name = without(image([Layer().file("a")]), server, key, data)
    with pytest.raises(ImageError, match=message):
        pulled(name)
    assert is_empty(store)
    assert not any(".." in path for path in server.paths())


def test_layer_of_another_content_of_the_same_size_is_not_stored(
    server: RegistryServer, store: ImageStore, pulled: Pull
) -> None:
    files = image([Layer().file("a")], compress=False)
    size = files.manifest["layers"][0]["size"]
    name = without(files, server, "layer", Layer().file("b").tar().ljust(size, b"\0"))
    with pytest.raises(ImageError, match="has the digest"):
        pulled(name)
    assert is_empty(store)


def test_manifest_must_have_the_digest_of_the_name(
    server: RegistryServer, store: ImageStore, pulled: Pull
) -> None:
    files, other = image([Layer().file("a")]), image([Layer().file("b")])
    server.add("app", "1", files)
    server.contents[f"/v2/app/manifests/{files.digest}"] = other.manifest_bytes
    with pytest.raises(ImageError, match="not the digest"):
        pulled(f"{server.host}/app@{files.digest}")
    assert is_empty(store)


def test_layer_above_the_limit_is_not_downloaded(
    server: RegistryServer, store: ImageStore, pulled: Pull
) -> None:
    name = server.add("app", "1", image([Layer().file("a", bytes(2 << 20))], compress=False))
    with pytest.raises(ImageError, match="exceeds the limit"):
        pulled(name, limits=UnpackLimits(size=1 << 20, free=0))
    assert len(server.paths("/blobs/")) == 1
    assert is_empty(store)


def test_server_that_sends_too_slowly_is_given_up(
    server: RegistryServer, store: ImageStore, pulled: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = server.add("app", "1", image([Layer().file("a")]))
    monkeypatch.setattr(registry, "MIN_TIME", -1e9)
    with pytest.raises(ImageError, match="is too slow"):
        pulled(name)
    assert is_empty(store)


def test_mirror_is_tried_first(server: RegistryServer, pulled: Pull) -> None:
    with registry_server() as mirror:
        name = server.add("app", "1", image([Layer().file("a")]))
        other = server.add("other", "1", image([Layer().file("b")]))
        mirror.contents = {path: v for path, v in server.contents.items() if "/app/" in path}
        pulled(name, f"http://{mirror.host}")
        assert server.requests == []
        pulled(other, f"http://{mirror.host}")
        assert len(mirror.paths("/other/")) == 1
        assert len(server.paths("/other/")) == 3


def test_unreachable_mirror_is_passed_over(server: RegistryServer, pulled: Pull) -> None:
    name = server.add("app", "1", image([Layer().file("a")]))
    with registry_server() as stopped:
        url = f"http://{stopped.host}"
    assert pulled(name, url).name == name


def test_missing_image_is_reported(server: RegistryServer, pulled: Pull) -> None:
    with pytest.raises(ImageError, match="manifests/1: not found"):
        pulled(f"{server.host}/app:1")


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    """A context with a certificate of an authority that is not trusted."""
    pair = pki.ensure(tmp_path / "pki").agent
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


def test_untrusted_certificate_is_rejected(
    store: ImageStore, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "RETRY_DELAY", 0.0)
    with registry_server(tls) as server:
        name = server.add("app", "1", image([Layer().file("a")]))
        with pytest.raises(ImageError, match="CERTIFICATE_VERIFY_FAILED"):
            pull(
                store,
                references.parse(name),
                [Endpoint(f"https://{server.host}", (CREDENTIAL,))],
                limits=LIMITS,
            )
        assert server.requests == []


def test_token_server_of_a_secure_registry_must_be_secure(server: RegistryServer) -> None:
    session = registry._Session(None, "https://images.invalid", "app", CREDENTIAL)  # type: ignore[arg-type]
    with pytest.raises(ImageError, match="insecure token server"):
        session._token(f'realm="http://{server.host}/token",service="x"')
    assert server.requests == []


def test_errors_and_representations_have_no_secrets(server: RegistryServer, pulled: Pull) -> None:
    server.authentication = "bearer"
    name = server.add("app", "1", image([Layer().file("a")]))
    server.contents.clear()
    with pytest.raises(ImageError) as raised:
        pulled(name, credential=CREDENTIAL)
    for text in (str(raised.value), repr(CREDENTIAL), repr(Endpoint("u", (CREDENTIAL,)))):
        assert PASSWORD not in text
        assert TOKEN not in text


async def test_image_is_pulled_by_a_process(server: RegistryServer, store: ImageStore) -> None:
    server.authentication = "bearer"
    name = references.parse(server.add("app", "1", image([Layer().file("a")])))
    data = store.root.parent
    endpoint = Endpoint(f"http://{server.host}", (CREDENTIAL,))
    with pytest.raises(ImageError, match="401"):
        await pull_in_process(data, name, (Endpoint(f"http://{server.host}"),), LIMITS)
    stored = await pull_in_process(data, name, (endpoint,), LIMITS)
    assert store.images() == [stored]


async def test_cancelled_pull_leaves_nothing_valid(
    server: RegistryServer, store: ImageStore
) -> None:
    name = references.parse(server.add("app", "1", image([Layer().file("a")])))
    reached = asyncio.Event()
    loop = asyncio.get_running_loop()
    release = asyncio.Event()

    def hang(handler: Any) -> bool:
        if "/blobs/" not in handler.path:
            return False
        loop.call_soon_threadsafe(reached.set)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        return True

    server.handle = hang
    endpoints = (Endpoint(f"http://{server.host}"),)
    task = asyncio.create_task(pull_in_process(store.root.parent, name, endpoints, LIMITS))
    await reached.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    release.set()
    assert store.images() == []
    store.collect(list)
    assert is_empty(store)


# --- credentials and configuration ----------------------------------------------------------


def test_credentials_match_registries_as_in_kubelet() -> None:
    config = {
        "https://index.docker.io/v1/": {"username": "hub", "password": "p"},
        "registry.example": {"auth": "aG9zdDpwOnc="},
        "registry.example/team": {"username": "team", "password": "p"},
        "*.wild.example": {"username": "wild", "password": "p"},
        "helper.example": {},
    }
    keyring = parse_config(json.dumps({"auths": config}).encode())

    def users(registry: str, repository: str) -> list[str]:
        return [each.username for each in matching(keyring, registry, repository)]

    assert users("docker.io", "library/busybox") == ["hub"]
    assert users("registry.example", "team/app") == ["team", "host"]
    assert users("registry.example", "teams/app") == ["host"]
    assert users("a.wild.example", "app") == ["wild"]
    assert users("b.a.wild.example", "app") == []
    assert users("registry.example.evil.example", "app") == []
    assert users("helper.example", "app") == []
    [host] = matching(keyring, "registry.example", "x")
    assert host.password == "p:w"


def test_old_form_of_the_configuration_is_read() -> None:
    data = b'{"registry.example": {"username": "ann", "password": "p"}}'
    assert parse_config(data, nested=False) == (("registry.example", Credential("ann", "p")),)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", '{"auths": 3}', '{"auths": {"a": 3}}', '{"auths": {"a": {"auth": "%"}}}'],
)
def test_malformed_configuration_is_rejected_without_its_content(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid Docker configuration") as raised:
        parse_config(text.encode())
    assert raised.value.__cause__ is None


def test_registries_are_named_with_their_mirrors() -> None:
    found = parse_registries(
        ("docker.io", "r.example:5000=https://a.example", "r.example:5000=http://b:1")
    )
    assert found == (
        Registry("docker.io"),
        Registry("r.example:5000", ("https://a.example", "http://b:1")),
    )


@pytest.mark.parametrize(
    "text",
    ["", "a/b", "busybox", "https://a.example", "a.example=", "a.example=b.example",
     "a.example=https://u:p@b.example", "a.example=https://b.example/path", "a.example=ftp://b"],
)  # fmt: skip
def test_malformed_registries_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="--registry"):
        parse_registries((text,))
