"""Shard of a key by Volcano's hash, the same in every process."""

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Shard:
    """One of *count* shards of all keys."""

    index: int
    count: int

    def owns(self, key: str) -> bool:
        """Return whether *key* is in this shard."""
        return self.count == 1 or fnv1(key) % self.count == self.index

    def worker_of(self, key: str, workers: int) -> int:
        """Return the index of the worker queue of *key*, below *workers*.

        Independent of the shard: else few of the worker queues would have any keys.
        """
        return fnv1(key) // self.count % workers


WHOLE = Shard(0, 1)
"""The shard of a process that reconciles all keys."""
