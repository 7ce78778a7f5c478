"""Bootstrap tokens: with one, a machine asks for the certificate of a node.

A token ``ID.SECRET`` is a Secret ``bootstrap-token-ID`` in ``kube-system``, with the fields of
Kubernetes and kubeadm.
"""

import base64
import ipaddress
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from . import times

NAMESPACE = "kube-system"
SECRET_TYPE = "bootstrap.kubernetes.io/token"  # noqa: S105 - a type
NAME_PREFIX = "bootstrap-token-"
GROUP = "system:bootstrappers"
USER_PREFIX = "system:bootstrap:"

DEFAULT_TTL = timedelta(hours=24)

CLUSTER_INFO = "cluster-info"
"""ConfigMap with the address and the CA of the API server, which anonymous clients may read."""
CLUSTER_INFO_NAMESPACE = "kube-public"
KUBECONFIG_KEY = "kubeconfig"

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_TOKEN = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})", re.ASCII)
_JOIN_TOKEN = re.compile(r"([a-z0-9]{6}\.[a-z0-9]{16})\.([0-9a-f]{64})", re.ASCII)
_EXTRA_GROUP = re.compile(rf"{GROUP}:[a-z0-9:-]{{0,255}}[a-z0-9]", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapToken:
    """A token and until when it is valid."""

    id: str
    secret: str
    expires_at: datetime | None
    """``None``: it does not expire."""

    description: str = ""
    authenticates: bool = True
    """Whether it may be used to authenticate."""

    groups: tuple[str, ...] = (GROUP,)

    @classmethod
    def new(cls, *, expires_at: datetime | None, description: str = "") -> "BootstrapToken":
        """Return a new random token."""
        characters = [secrets.choice(_ALPHABET) for _ in range(22)]
        text = "".join(characters)
        return cls(id=text[:6], secret=text[6:], expires_at=expires_at, description=description)

    def __str__(self) -> str:
        """Return the token as it is written in requests."""
        return f"{self.id}.{self.secret}"

    @property
    def secret_name(self) -> str:
        """Name of its Secret."""
        return f"{NAME_PREFIX}{self.id}"

    def is_expired(self, now: datetime) -> bool:
        """Return whether it is not valid any more."""
        return self.expires_at is not None and now >= self.expires_at

    def to_secret(self) -> dict[str, Any]:
        """Return its Secret."""
        data = {
            "token-id": self.id,
            "token-secret": self.secret,
            "usage-bootstrap-authentication": "true",
            "description": self.description,
            "expiration": times.format(self.expires_at) if self.expires_at else "",
        }
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
        return {
            "metadata": {"name": self.secret_name, "namespace": NAMESPACE},
            "type": SECRET_TYPE,
            "data": {key: text for key, text in encoded.items() if text},
        }


def from_secret(secret: Mapping[str, Any]) -> BootstrapToken | None:
    """Return the token of a Secret; ``None`` if it is none, or malformed."""
    if secret.get("type") != SECRET_TYPE:
        return None
    try:
        data = {
            key: base64.b64decode(value).decode()
            for key, value in (secret.get("data") or {}).items()
        }
        expiration = data.get("expiration", "")
        token = BootstrapToken(
            id=data.get("token-id", ""),
            secret=data.get("token-secret", ""),
            expires_at=times.parse(expiration) if expiration else None,
            description=data.get("description", ""),
            authenticates=data.get("usage-bootstrap-authentication") == "true",
            groups=(GROUP, *filter(None, data.get("auth-extra-groups", "").split(","))),
        )
    except ValueError:
        return None
    is_valid = (
        _TOKEN.fullmatch(str(token))
        and secret["metadata"]["name"] == token.secret_name
        and all(map(_EXTRA_GROUP.fullmatch, token.groups[1:]))
    )
    return token if is_valid else None


def id_of(text: str) -> str:
    """Return the id of a token; empty if *text* is none."""
    found = _TOKEN.fullmatch(text)
    return found[1] if found else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """What ``batholith join`` gets: a token, the hash of the CA's public key, and an address."""

    token: str
    ca_hash: str
    host: str
    port: int

    def __str__(self) -> str:
        """Return the argument of the command."""
        return f"{self.token}.{self.ca_hash}@{self.host}:{self.port}"

    @property
    def server(self) -> str:
        """Return the URL of the API server."""
        return f"https://{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, *, default_port: int) -> "JoinToken":
        """Parse the argument of the command.

        Raises:
            ValueError: it is malformed; the text does not show it, since it has a secret.
        """
        token, separator, address = text.rpartition("@")
        found = _JOIN_TOKEN.fullmatch(token)
        if not separator or found is None:
            raise ValueError(
                "the token has not the form ID.SECRET.HASH@ADDRESS:PORT that `batholith token "
                "create` prints"
            )
        host, port = parse_address(address, default_port=default_port)
        return cls(token=found[1], ca_hash=found[2], host=host, port=port)


def parse_address(text: str, *, default_port: int) -> tuple[str, int]:
    """Return address and port of ``ADDRESS[:PORT]``, an address that other machines can reach.

    Raises:
        ValueError: it is no IPv4 address, or one that only this machine has.
    """
    host, separator, port = text.partition(":")
    try:
        address = ipaddress.IPv4Address(host)
        number = int(port) if separator else default_port
    except ValueError:
        raise ValueError(f"{text!r} is no IPv4 address, or ADDRESS:PORT") from None
    if not 0 <= number < 65536:
        raise ValueError(f"{text!r}: the port is not between 0 and 65535")
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        raise ValueError(
            f"{host} is no address at which other machines reach this one: name one that "
            "`ip -4 address` shows"
        )
    return host, number
