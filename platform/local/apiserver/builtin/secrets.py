"""Defaults, validation and warnings of Secrets."""

import base64
from collections.abc import Callable
from typing import Any

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from ..errors.fields import IMMUTABLE, FieldError, invalid, required, too_long
from .core_objects import (
    ACCOUNT_NAME_ANNOTATION,
    DATA_LIMIT,
    TOKEN_SECRET_TYPE,
    validate_immutable,
    validate_keys,
)

Json = dict[str, Any]

_TLS, _CERTIFICATE, _PRIVATE_KEY = "kubernetes.io/tls", "tls.crt", "tls.key"
_BASIC_AUTH, _USER, _PASSWORD = "kubernetes.io/basic-auth", "username", "password"
_SSH_AUTH, _SSH_KEY = "kubernetes.io/ssh-auth", "ssh-privatekey"
_JSON_KEYS = {
    "kubernetes.io/dockercfg": ".dockercfg",
    "kubernetes.io/dockerconfigjson": ".dockerconfigjson",
}
"""Types whose Secrets contain a JSON object, and its key."""

_BEGIN, _DASHES = b"-----BEGIN ", b"-----"
_MOST_BLOCKS = 20
"""Blocks of a PEM file that are read at most."""


def default_secret(obj: Json) -> None:
    """Set a Secret's type, and move ``stringData`` to its data."""
    obj.setdefault("type", "Opaque")
    if texts := obj.pop("stringData", None):
        data = obj.setdefault("data", {})
        for key, text in texts.items():
            data[key] = base64.b64encode(text.encode()).decode()


def validate_secret(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate keys, size, type and immutability of a Secret."""
    data = obj.get("data", {})
    errors = validate_keys(data, "data")
    if sum(len(text) * 3 // 4 for text in data.values()) > DATA_LIMIT:
        errors.append(too_long("data", DATA_LIMIT))
    errors += _content_errors(obj.get("type", ""), data)
    annotations = obj["metadata"].get("annotations") or {}
    if obj.get("type") == TOKEN_SECRET_TYPE and not annotations.get(ACCOUNT_NAME_ANNOTATION):
        errors.append(required(f"metadata.annotations[{ACCOUNT_NAME_ANNOTATION}]"))
    if old is not None and obj.get("type") != old.get("type"):
        errors.append(invalid("type", obj.get("type"), IMMUTABLE))
    return errors + validate_immutable(obj, old, ("data",))


def _content_errors(kind: str, data: Json) -> list[FieldError]:
    """Validate that a Secret has what its type requires."""
    if kind == _TLS:
        missing = [key for key in (_CERTIFICATE, _PRIVATE_KEY) if key not in data]
    elif kind == _BASIC_AUTH:
        missing = [] if data.keys() & {_USER, _PASSWORD} else [_USER, _PASSWORD]
    elif kind == _SSH_AUTH:
        missing = [] if data.get(_SSH_KEY) else [_SSH_KEY]
    elif key := _JSON_KEYS.get(kind):
        return _json_errors(data, key)
    else:
        missing = []
    return [required(f"data[{key}]") for key in missing]


def _json_errors(data: Json, key: str) -> list[FieldError]:
    if key not in data:
        return [required(f"data[{key}]")]
    hidden, path = "<secret contents redacted>", f"data[{key}]"
    try:
        value = msgspec.json.decode(base64.b64decode(data[key]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return [invalid(path, hidden, str(error))]
    if value is not None and not isinstance(value, dict):
        return [invalid(path, hidden, "must be a JSON object")]
    return []


def secret_warnings(obj: Json, old: Json | None) -> list[str]:
    """Warn of a certificate and a private key that are not a pair."""
    if obj.get("type") != _TLS:
        return []
    data = obj.get("data") or {}
    certificate, key = (base64.b64decode(data.get(k, "")) for k in (_CERTIFICATE, _PRIVATE_KEY))
    problem = _pair_problem(certificate, key)
    return [f"tls: {problem}"] if problem else []


def _pair_problem(certificate: bytes, key: bytes) -> str:
    """Return what Go reports of a pair of PEM files, ``""`` if nothing."""
    der, skipped = _first_block(certificate, lambda kind: kind == "CERTIFICATE")
    if der is None:
        if not skipped:
            return "failed to find any PEM data in certificate input"
        if len(skipped) == 1 and skipped[0].endswith("PRIVATE KEY"):
            return (
                "failed to find certificate PEM data in certificate input, but did find a private "
                "key; PEM inputs may have been switched"
            )
        return (
            'failed to find "CERTIFICATE" PEM block in certificate input after skipping PEM blocks '
            f"of the following types: [{' '.join(skipped)}]"
        )
    key_der, skipped = _first_block(key, lambda kind: f" {kind}".endswith(" PRIVATE KEY"))
    if key_der is not None:
        return _mismatch(der, key_der)
    if not skipped:
        return "failed to find any PEM data in key input"
    if skipped == ["CERTIFICATE"]:
        return "found a certificate rather than a key in the PEM for the private key"
    return (
        'failed to find PEM block with type ending in "PRIVATE KEY" in key input after skipping '
        f"PEM blocks of the following types: [{' '.join(skipped)}]"
    )


def _first_block(pem: bytes, is_wanted: Callable[[str], bool]) -> tuple[bytes | None, list[str]]:
    """Return the content of the first block of a wanted type, and the types of those before it."""
    skipped: list[str] = []
    begin = 0
    for _ in range(_MOST_BLOCKS):  # each may search the whole file for its end
        begin = pem.find(_BEGIN, begin) + len(_BEGIN)
        header = pem.find(_DASHES, begin)
        if begin < len(_BEGIN) or header < 0:
            break
        kind = pem[begin:header]
        begin = header + len(_DASHES)
        end = pem.find(b"-----END " + kind + _DASHES, begin)
        if end < 0:
            continue  # As in Go, a malformed block is none.
        try:
            content, name = base64.b64decode(b"".join(pem[begin:end].split())), kind.decode()
        except ValueError:
            continue
        if is_wanted(name):
            return content, skipped
        skipped.append(name)
        begin = end
    return None, skipped


def _mismatch(certificate: bytes, key: bytes) -> str:
    try:
        public = x509.load_der_x509_certificate(certificate).public_key()
    except (ValueError, UnsupportedAlgorithm):
        return "failed to parse certificate"
    try:
        # The check that the numbers of a key are primes is not needed here, and slow.
        private = serialization.load_der_private_key(
            key, password=None, unsafe_skip_rsa_key_validation=True
        ).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return "failed to parse private key"
    if type(public) is not type(private):
        return "private key type does not match public key type"
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    if public.public_bytes(*form) != private.public_bytes(*form):
        return "private key does not match public key"
    return ""
