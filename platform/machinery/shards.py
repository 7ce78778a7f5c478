"""Shard of a key by Volcano's hash, the same in every process."""

from functools import lru_cache

_OFFSET = 2166136261
_PRIME = 16777619
_MASK = 0xFFFFFFFF


@lru_cache(maxsize=1 << 17)
def fnv1(key: str) -> int:
    """Return the 32-bit FNV-1 (not 1a) of the key's UTF-8 bytes."""
    value = _OFFSET
    for byte in key.encode():
        value = (value * _PRIME & _MASK) ^ byte
    return value


def shard_of(key: str, shards: int) -> int:
    """Return the index of the shard of *key*, below *shards*."""
    return fnv1(key) % shards
