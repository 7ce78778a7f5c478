"""Hashes of pod templates, which end the names of ReplicaSets and revisions."""

import msgspec

from .types import Json

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""Those of generated names."""


def template_hash(content: Json, collisions: int | None = None) -> str:
    """Return a hash of *content*, another one after each collision of a name.

    It need not be the one of kube-controller-manager, which depends on its Go types: a ReplicaSet
    is found by its template, and the name only has to be the same after a crash.
    """
    text = msgspec.json.encode(content, order="deterministic")
    if collisions is not None:
        text += collisions.to_bytes(8, "little")
    number = 2166136261  # FNV-1a
    for byte in text:
        number = ((number ^ byte) * 16777619) & 0xFFFFFFFF
    return "".join(_ALPHABET[ord(digit) % len(_ALPHABET)] for digit in str(number))
