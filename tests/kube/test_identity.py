"""Requests with another identity than the client's own: their headers, certificates and errors."""

import ast
import inspect
import ssl
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.authorization import authorizer_without_roles
from support.examples import examples
from support.raw_http_server import OK, RawConnection, RawHttpServer, raw_http_server

from batholith.kube.client import client as client_module
from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials
from batholith.kube.client.identity import Identity, IdentityError
from batholith.kube.errors import CallerUnauthorizedError, ConfigError, UnauthorizedError
from batholith.local.apiserver.authorization.impersonation import acting_user
from batholith.local.apiserver.authorization.rules import Attributes
from batholith.local.apiserver.http.auth import User
from batholith.local.supervisor import pki
from batholith.model.names import QUEUES

UNAUTHORIZED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\n{}"
ADMIN = User(name="admin", groups=("system:masters",))
MASTERS_ONLY = authorizer_without_roles()


def client_of(http_server: RawHttpServer, **credentials: Any) -> Client:
    given: dict[str, Any] = {"server": f"http://127.0.0.1:{http_server.port}", "token": "own"}
    return Client(Credentials(**(given | credentials)), user_agent="tests")


def header_lines(raw: bytes) -> list[str]:
    """The headers of a request that depend on who sends it."""
    lines = raw.decode().partition("\r\n\r\n")[0].split("\r\n")
    return [line for line in lines if line.startswith(("Authorization", "Impersonate"))]


async def test_a_bearer_token_replaces_all_credentials_of_the_client() -> None:
    async with raw_http_server() as server:
        impersonate = (("Impersonate-User", "other"), ("Impersonate-Group", "system:masters"))
        async with client_of(server, impersonate=impersonate) as own:
            caller = own.acting_as(Identity.bearer("theirs"))
            await caller.get(QUEUES, "q", view=dict)
            await caller.background().create(QUEUES, {}, view=dict)
            async with caller.watch_lines("/watch"):
                pass
            async with caller.stream_path("/log", idle_timeout=None):
                pass
            await own.get(QUEUES, "q", view=dict)
    *of_caller, last = map(header_lines, server.requests)
    assert of_caller == [["Authorization: Bearer theirs"]] * 4
    assert last == [
        "Impersonate-User: other",
        "Impersonate-Group: system:masters",
        "Authorization: Bearer own",
    ]


async def test_impersonation_is_added_to_the_credentials_of_the_client() -> None:
    identity = Identity.impersonation(
        "jänе",
        uid="1",
        groups=("a", "b c"),
        extra={"scopes": ("x", ""), "acme.com/project": ("p",), "100%": ("y",), "none": ()},
    )
    async with raw_http_server() as server, client_of(server) as own:
        await own.acting_as(identity).get(QUEUES, "q", view=dict)
    assert header_lines(server.requests[0]) == [
        "Authorization: Bearer own",
        "Impersonate-User: jänе",
        "Impersonate-Uid: 1",
        "Impersonate-Group: a",
        "Impersonate-Group: b c",
        "Impersonate-Extra-scopes: x",
        "Impersonate-Extra-scopes: ",
        "Impersonate-Extra-acme.com%2Fproject: p",
        "Impersonate-Extra-100%25: y",
    ]


async def test_callers_share_connections() -> None:
    async with raw_http_server() as server, client_of(server) as own:
        for caller in range(20):
            await own.acting_as(Identity.bearer(f"t{caller}")).get(QUEUES, "q", view=dict)
        await own.get(QUEUES, "q", view=dict)
        assert server.connections == 1


async def test_the_certificate_of_the_client_is_not_sent_with_a_token(tmp_path: Path) -> None:
    """A server authenticates by the certificate if there is one, and ignores the token."""
    keys, names = pki.ensure(tmp_path), list[str]()

    async def note_name(server: RawHttpServer, peer: RawConnection) -> None:
        certificate = peer.writer.get_extra_info("peercert") or {}
        while True:
            await peer.request()
            names.append(str(certificate.get("subject", "")))
            peer.send(OK)

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(keys.ca))
    tls.load_cert_chain(keys.server.certificate, keys.server.key)
    tls.verify_mode = ssl.CERT_OPTIONAL
    async with raw_http_server(note_name, tls=tls) as server:
        async with client_of(
            server,
            server=f"https://127.0.0.1:{server.port}",
            ca_data=keys.ca_data,
            cert_file=str(keys.client.certificate),
            key_file=str(keys.client.key),
        ) as own:
            callers = [own.acting_as(Identity.bearer(f"t{each}")) for each in range(3)]
            for client in (own, *callers, own, *callers):
                await client.get(QUEUES, "q", view=dict)
            await own.acting_as(Identity.impersonation("jane")).get(QUEUES, "q", view=dict)
        assert server.connections == 2
    assert [bool(name) for name in names] == [True, *[False] * 3] * 2 + [True]


async def test_a_rejected_token_of_a_caller_is_told_from_the_clients_own(tmp_path: Path) -> None:
    """The client does not read its own token again because of it."""
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("own")

    async def reject(server: RawHttpServer, peer: RawConnection) -> None:
        while True:
            server.requests.append(await peer.request())
            peer.send(UNAUTHORIZED)

    async with (
        raw_http_server(reject) as server,
        client_of(server, token="", token_file=str(token)) as own,
    ):
        caller = own.acting_as(Identity.bearer("secret"))
        with pytest.raises(CallerUnauthorizedError) as caught:
            await caller.get(QUEUES, "q", view=dict)
        assert "secret" not in f"{caught.value}{caught.value!r}"
        with pytest.raises(CallerUnauthorizedError):
            async with caller.watch_lines("/watch"):
                pass
        token.write_text("rotated")
        for identity in (None, Identity.impersonation("jane")):
            with pytest.raises(UnauthorizedError) as own_error:
                await (own.acting_as(identity) if identity else own).get(QUEUES, "q", view=dict)
            assert not isinstance(own_error.value, CallerUnauthorizedError)
    sent = [header_lines(raw)[0].rpartition(" ")[2] for raw in server.requests]
    assert sent == ["secret", "secret", "own", "rotated"]


@pytest.mark.parametrize("token", ["", "q w", "q\r\nX-Evil: 1", "q\tw", "ä", "q\0"])
def test_an_invalid_token_is_rejected_and_not_shown(token: str) -> None:
    with pytest.raises(IdentityError) as caught:
        Identity.bearer(token)
    assert not token or token not in str(caught.value)


def test_identities_are_not_shown() -> None:
    assert "secret" not in repr(Identity.bearer("secret"))


def test_an_impersonating_client_cannot_impersonate_others() -> None:
    credentials = Credentials(server="http://h", impersonate=(("Impersonate-User", "a"),))
    client = Client(credentials, user_agent="tests")
    client.acting_as(Identity.bearer("t"))
    with pytest.raises(ConfigError, match="cannot impersonate"):
        client.acting_as(Identity.impersonation("jane"))


@pytest.mark.parametrize(
    "attributes",
    [
        {"user": ""},
        {"user": " jane"},
        {"user": "jane "},
        {"user": "jane\r\nImpersonate-Group: system:masters"},
        {"user": "\ud800"},
        {"user": "jane", "groups": [""]},
        {"user": "jane", "groups": ["a\n"]},
        {"user": "jane", "uid": "\t1"},
        {"user": "jane", "extra": {"Scopes": ["x"]}},
        {"user": "jane", "extra": {"": ["x"]}},
        {"user": "jane", "extra": {"a": [" x"]}},
    ],
)
def test_an_identity_that_headers_would_change_is_rejected(attributes: dict[str, Any]) -> None:
    with pytest.raises(IdentityError):
        Identity.impersonation(attributes.pop("user"), **attributes)


TEXTS = st.text(max_size=8) | st.sampled_from(["system:masters", "a b", "ä", "%41", "x\r\ny"])


@given(
    user=TEXTS,
    uid=TEXTS,
    groups=st.lists(TEXTS, max_size=3),
    extra=st.dictionaries(TEXTS, st.lists(TEXTS, min_size=1, max_size=2), max_size=3),
)
@settings(max_examples=examples(200))
def test_what_is_sent_is_what_the_server_reads(
    user: str, uid: str, groups: list[str], extra: dict[str, list[str]]
) -> None:
    """An identity is either rejected, or the server handles the request as exactly this user."""
    try:
        identity = Identity.impersonation(user, uid=uid, groups=groups, extra=extra)
    except IdentityError:
        return
    headers: dict[str, str] = {}
    for line in identity.header_lines.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b": ")
        key = name.decode("ascii").lower()
        text = value.strip(b" \t").decode("latin-1")
        headers[key] = f"{headers[key]}\n{text}" if key in headers else text
    found = acting_user(ADMIN, headers, Attributes("get", path="/version"), MASTERS_ONLY)
    assert (found.name, found.uid) == (user, uid)
    assert dict(found.extra) == {key: tuple(values) for key, values in extra.items()}
    added = {"system:authenticated", "system:unauthenticated"}
    assert [each for each in found.groups if each not in added] == [
        each for each in groups if each not in added
    ]


def test_each_request_of_a_client_has_its_identity() -> None:
    """A request without it would be sent with the rights of the client itself."""
    calls = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(client_module)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ApiRequest"
    ]
    assert calls
    without = [ast.unparse(call) for call in calls if "self._identity" not in ast.unparse(call)]
    assert without == []
