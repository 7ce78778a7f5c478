"""Credentials of registries: pull secrets of pods, and the Docker configuration of the user."""

import base64
import binascii
import json
import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from .references import DEFAULT_REGISTRY

_MAX_CONFIG = 1 << 20
_DOCKER_HUB = frozenset({"index.docker.io", "registry-1.docker.io", DEFAULT_REGISTRY})
CONFIG_KEYS = {".dockerconfigjson": True, ".dockercfg": False}
"""Keys of pull secrets; whether registries are below ``auths``."""


class Credential(msgspec.Struct, frozen=True):
    """User and password of a registry."""

    username: str
    password: str

    def __repr__(self) -> str:
        """Hide the password, so that no log has it."""
        return f"Credential({self.username!r})"


class Endpoint(msgspec.Struct, frozen=True):
    """A server that has the images of a registry: the registry, or a mirror."""

    url: str
    """Scheme and host, and port if it is not the scheme's."""

    credentials: tuple[Credential, ...] = ()


Keyring = tuple[tuple[str, Credential], ...]
"""Credentials by registry, which may have a path, and ``*`` in its host."""


def parse_config(data: bytes, *, nested: bool = True) -> Keyring:
    """Return the credentials of a Docker configuration; entries without any are left out.

    Raises:
        ValueError: it is malformed; the text has nothing of its content.
    """
    try:
        config = json.loads(data)
        auths = config.get("auths") or {} if nested else config
        return tuple(
            (_normalize(key), credential)
            for key, entry in auths.items()
            if (credential := _credential(entry)) is not None
        )
    except (AttributeError, TypeError, ValueError, RecursionError):
        raise ValueError("not a valid Docker configuration") from None


def _credential(entry: Mapping[str, Any]) -> Credential | None:
    user, password, encoded = (str(entry.get(k) or "") for k in ("username", "password", "auth"))
    if encoded:
        try:
            user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise ValueError from None
    return Credential(user, password.rstrip("\0")) if user else None


def _normalize(key: str) -> str:
    """``https://index.docker.io/v1/`` → ``docker.io``."""
    host, _, path = key.partition("://")[2].partition("/") if "://" in key else key.partition("/")
    path = path.strip("/")
    if path in ("v1", "v2"):
        path = ""
    host = DEFAULT_REGISTRY if host in _DOCKER_HUB else host
    return f"{host}/{path}" if path else host


def user_keyring(environ: Mapping[str, str]) -> Keyring:
    """Return the credentials of this user's Docker configuration, if it can be read."""
    directory = environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
    try:
        with (Path(directory) / "config.json").open("rb") as file:
            return parse_config(file.read(_MAX_CONFIG))
    except (OSError, ValueError):
        return ()


def matching(keyring: Keyring, registry: str, repository: str) -> list[Credential]:
    """Return the credentials for a repository, those of the longest matching name first."""
    found = [each for each in keyring if _matches(each[0], registry, repository)]
    found.sort(key=lambda each: len(each[0]), reverse=True)
    return list(dict.fromkeys(credential for _, credential in found))


def _matches(name: str, registry: str, repository: str) -> bool:
    host, _, path = name.partition("/")
    ours, theirs = registry.split("."), host.split(".")
    if len(ours) != len(theirs) or not all(map(fnmatchcase, ours, theirs)):
        return False
    return not path or f"{repository}/".startswith(f"{path}/")
