"""Which of several queues a key belongs to: Volcano's hash, the same in every process."""

from functools import lru_cache

_OFFSET = 2166136261
_PRIME = 16777619
_MASK = 0xFFFFFFFF


@lru_cache(maxsize=1 << 17)
def fnv1(key: str) -> int:
    """32-bit FNV-1 (not 1a) of the key's UTF-8 bytes."""
    value = _OFFSET
    for byte in key.encode():
        value = (value * _PRIME & _MASK) ^ byte
    return value


def shard_of(key: str, shards: int) -> int:
    """Index of the shard, below *shards*, that *key* belongs to."""
    return fnv1(key) % shards
