"""Where notifications may be sent to.

A URL is written by a user, and requested from inside the cluster: without limits it would reach
what the network hides from that user. So a name is resolved once, all its addresses must be
permitted, and one of these is connected to, even if the name resolves to others by then.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from .notifications import url_error

Address = IPv4Address | IPv6Address

_NAT64 = IPv6Network("64:ff9b::/96")
_METADATA = frozenset(map(ip_address, ("168.63.129.16", "192.0.0.192", "100.100.100.200")))
"""Addresses of instance metadata and of host agents of clouds, some of which count as global."""


@dataclass(frozen=True, slots=True)
class Destinations:
    """Which hosts are permitted in addition to those with public addresses, and with HTTP."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @staticmethod
    def parse(texts: Iterable[str]) -> "Destinations":
        """Return what names of hosts, addresses and networks permit.

        Raises:
            ValueError: one is none of them.
        """
        hosts, networks = set(), []
        for text in texts:
            try:
                networks.append(ip_network(text))
                continue
            except ValueError as error:
                if "/" in text or ":" in text or not text or url_error(f"http://{text}"):
                    raise ValueError(f"{text!r} is neither a host nor a network: {error}") from None
            hosts.add(text.lower().rstrip("."))
        return Destinations(frozenset(hosts), tuple(networks))

    def error_of(self, url: str) -> str:
        """Return why *url* cannot be requested, as far as that is known without resolving its host;
        empty if nothing is known."""
        if text := url_error(url):
            return text
        split = urlsplit(url)
        host = str(split.hostname)
        try:
            address = ip_address(host)
        except ValueError:
            known = not self.networks and host.rstrip(".") not in self.hosts
            return "must be a URL of https" if known and split.scheme != "https" else ""
        return self._error_of_address(address, split.scheme)

    def error_of_resolved(self, url: str, addresses: Sequence[Address]) -> str:
        """Return why *url* must not be requested at *addresses*; empty if it may be."""
        split = urlsplit(url)
        if str(split.hostname).rstrip(".") in self.hosts:
            return ""
        errors = (self._error_of_address(each, split.scheme) for each in addresses)
        return next(filter(None, errors), "")

    def _error_of_address(self, address: Address, scheme: str) -> str:
        embedded = _embedded(address)
        if any(address in each or embedded in each for each in self.networks):
            return ""
        if not (_is_public(address) and _is_public(embedded)):
            return f"{address} is not a public address, and not permitted"
        return "" if scheme == "https" else "must be a URL of https"


def _is_public(address: Address) -> bool:
    return address.is_global and not address.is_multicast and address not in _METADATA


def _embedded(address: Address) -> Address:
    """Return the IPv4 address that routers or the kernel may send to instead of an IPv6 one."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationRules:
    """Whether notifications are sent, and where to."""

    destinations: Destinations | None = None
    """``None``: none are sent."""
    is_known: bool = True
    """Whether that is known: not by a command that has no REST API."""

    def error_of(self, url: str) -> str:
        """Return why *url* would not be notified, as far as that is known."""
        if not self.is_known:
            return url_error(url)
        if self.destinations is None:
            return "this installation sends no notifications: the REST API has no --notify-key-file"
        return self.destinations.error_of(url)
