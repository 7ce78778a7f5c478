"""Rate limits per caller, as token buckets in bounded memory."""

import ipaddress
from collections import OrderedDict

from ...machinery.clock import Clock

MAX_BUCKETS = 10_000
"""Maximum number of callers that are remembered; the one idle for longest is forgotten first."""

BURST_SECONDS = 2.0
"""Size of a burst, as seconds of the rate."""

_IPV6_PREFIX = 64
"""Bits of an address that one client does not choose."""


class RateLimiter:
    """One token bucket per key."""

    def __init__(self, rate: float, *, clock: Clock, size: int = MAX_BUCKETS) -> None:
        """Allow *rate* requests per second and key, and twice as many at once; 0 for any number."""
        self._rate = rate
        self._burst = max(1.0, rate * BURST_SECONDS)
        self._clock = clock
        self._size = size
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Level and its time, by key; a full bucket is not stored."""

    def __len__(self) -> int:
        """Number of buckets in memory."""
        return len(self._buckets)

    def take(self, key: str) -> float:
        """Take a token; return 0, or the seconds until there is one."""
        if self._rate <= 0:
            return 0.0
        level = self._level(key)
        if level < 1.0:
            return (1.0 - level) / self._rate
        self._store(key, level - 1.0)
        return 0.0

    def refund(self, key: str) -> None:
        """Return a token: the request does not count."""
        if self._rate > 0:
            self._store(key, self._level(key) + 1.0)

    def _level(self, key: str) -> float:
        known = self._buckets.get(key)
        if known is None:
            return self._burst
        level, since = known
        return min(self._burst, level + (self._clock.monotonic() - since) * self._rate)

    def _store(self, key: str, level: float) -> None:
        if level >= self._burst:
            self._buckets.pop(key, None)
            return
        self._buckets[key] = (level, self._clock.monotonic())
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._size:
            self._buckets.popitem(last=False)


def source_key(host: str) -> str:
    """Return the key of the client at address *host*: of IPv6 its network."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
    return str(address)
