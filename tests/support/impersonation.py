"""Requests with impersonation headers, for both API servers."""

import ssl
from asyncio import to_thread
from contextlib import closing
from http.client import HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

import msgspec
from support.embedded_apiserver import Server

Json = dict[str, Any]
Headers = tuple[tuple[str, str], ...]

SELF_REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_BODY = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}

JANE = ("Impersonate-User", "jane")
ROBOT = ("Impersonate-User", "system:serviceaccount:ns:robot")

CASES: tuple[Headers, ...] = (
    (JANE,),
    (JANE, ("Impersonate-Group", "a"), ("Impersonate-Group", "b"), ("Impersonate-Group", "a")),
    (JANE, ("Impersonate-Group", "system:authenticated"), ("Impersonate-Group", "z")),
    (JANE, ("Impersonate-Group", "")),
    (JANE, ("Impersonate-Group", "system:unauthenticated")),
    (
        JANE,
        ("Impersonate-Uid", "1"),
        ("Impersonate-Extra-Scopes", "x"),
        ("Impersonate-Extra-Scopes", "y"),
        ("Impersonate-Extra-acme.com%2fproject", "p"),
        ("Impersonate-Extra-Empty", ""),
        ("Impersonate-Extra-A%zz", "z"),
    ),
    (JANE, ("Impersonate-User", "joe")),
    (JANE, ("Impersonate-Nothing", "x")),
    (("Impersonate-User", "jänе"),),
    (("Impersonate-User", "system:anonymous"),),
    (("Impersonate-User", "system:anonymous"), ("Impersonate-Group", "a")),
    (("Impersonate-User", "system:node:n"), ("Impersonate-Group", "system:nodes")),
    (ROBOT,),
    (ROBOT, ("Impersonate-Group", "g")),
    (("Impersonate-Group", "a"),),
    (("Impersonate-Uid", "a"),),
    (("Impersonate-Extra-A", "a"),),
    (("Impersonate-User", ""),),
)


async def self_review(server: Server, token: str, headers: Headers) -> tuple[int, Json]:
    """Status and body of a SelfSubjectReview with *headers* as they are, also repeated ones."""
    return await to_thread(_send, server, token, headers)


def _send(server: Server, token: str, headers: Headers) -> tuple[int, Json]:
    address = urlsplit(server.url)
    context = ssl.create_default_context(cadata=server.ca.decode())
    assert address.hostname
    data = msgspec.json.encode(_BODY)
    with closing(
        HTTPSConnection(address.hostname, address.port, timeout=60, context=context)
    ) as connection:
        connection.putrequest("POST", SELF_REVIEW)
        given = (("Authorization", f"Bearer {token}"), ("Content-Type", "application/json"))
        for name, value in (*given, ("Content-Length", str(len(data))), *headers):
            connection.putheader(name, value.encode())
        connection.endheaders(data)
        response = connection.getresponse()
        return response.status, msgspec.json.decode(response.read())
