"""Functions of quantities, URLs, addresses and versions."""

import ipaddress
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ...model import quantity
from .signatures import CIDR, IP, QUANTITY, SEMVER, URL, Signature, value_of

_NANO = 1_000_000_000
_MAX_INT = 2**63 - 1
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][\w-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][\w-]*))*))?"
    r"(?:\+[\w.-]+)?",
    re.ASCII,
)
_S = "string"


def accepts(read: Callable[..., object]) -> Callable[..., bool]:
    """Return a function that returns whether *read* accepts a text."""

    def check(text: str, *options: object) -> bool:
        try:
            read(text, *options)
        except ValueError:
            return False
        return True

    return check


# Quantities: billionths as text, which is exact in maps of CEL.


def _nanos(text: str) -> int:
    return quantity.parse(text).nanos


def _quantity(text: str) -> dict[str, Any]:
    return value_of(QUANTITY, str(_nanos(text)))


def _compare(one: str, other: str) -> int:
    difference = int(one) - int(other)
    return (difference > 0) - (difference < 0)


def _as_integer(nanos: str) -> int:
    whole, rest = divmod(int(nanos), _NANO)
    if rest or abs(whole) > _MAX_INT:
        raise ValueError("cannot convert value to integer")
    return whole


def _added(sign: int, whole: bool) -> Callable[[str, Any], dict[str, Any]]:
    def call(one: str, other: Any) -> dict[str, Any]:
        amount = other * _NANO if whole else int(other)
        return value_of(QUANTITY, str(int(one) + sign * amount))

    return call


_QUANTITIES = (
    Signature("quantity", (_S,), QUANTITY, _quantity, member=False),
    Signature("isQuantity", (_S,), "bool", accepts(_nanos), member=False),
    Signature("sign", (QUANTITY,), "int", lambda one: _compare(one, "0")),
    Signature("isGreaterThan", (QUANTITY,) * 2, "bool", lambda *pair: _compare(*pair) > 0),
    Signature("isLessThan", (QUANTITY,) * 2, "bool", lambda *pair: _compare(*pair) < 0),
    Signature("compareTo", (QUANTITY,) * 2, "int", _compare),
    Signature("asApproximateFloat", (QUANTITY,), "double", lambda one: int(one) / _NANO),
    Signature("asInteger", (QUANTITY,), "int", _as_integer),
    Signature("isInteger", (QUANTITY,), "bool", accepts(_as_integer)),
    Signature("add", (QUANTITY, QUANTITY), QUANTITY, _added(1, whole=False)),
    Signature("add", (QUANTITY, "int"), QUANTITY, _added(1, whole=True)),
    Signature("sub", (QUANTITY, QUANTITY), QUANTITY, _added(-1, whole=False)),
    Signature("sub", (QUANTITY, "int"), QUANTITY, _added(-1, whole=True)),
)


# URLs


def _url(text: str) -> dict[str, Any]:
    _check_url(text)
    return value_of(URL, text)


def _check_url(text: str) -> None:
    split = urlsplit(text)
    if not (split.scheme or text.startswith("/")) or any(map(str.isspace, text)):
        raise ValueError(f'URL parse error during conversion from string: parse "{text}"')
    _ = split.port


def _host(text: str) -> str:
    return urlsplit(text).netloc.rpartition("@")[2]


def _hostname(text: str) -> str:
    host = _host(text)
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _port(text: str) -> str:
    number = urlsplit(text).port
    return "" if number is None else str(number)


_URLS = (
    Signature("url", (_S,), URL, _url, member=False),
    Signature("isURL", (_S,), "bool", accepts(_check_url), member=False),
    Signature("getScheme", (URL,), _S, lambda text: urlsplit(text).scheme),
    Signature("getHost", (URL,), _S, _host),
    Signature("getHostname", (URL,), _S, _hostname),
    Signature("getPort", (URL,), _S, _port),
    Signature("getEscapedPath", (URL,), _S, lambda text: urlsplit(text).path),
    Signature(
        "getQuery",
        (URL,),
        "map(string, list(string))",
        lambda text: parse_qs(urlsplit(text).query, keep_blank_values=True),
    ),
)


# Addresses

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _parse_ip(text: str) -> _Address:
    if "%" in text:
        raise ValueError(f"IP address '{text}' with zone value is not allowed")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"IP Address '{text}' parse error during conversion from string") from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        raise ValueError(f"IPv4-mapped IPv6 address '{text}' is not allowed")
    return address


def _ip(text: str) -> dict[str, Any]:
    return value_of(IP, str(_parse_ip(text)))


def _is_global_unicast(text: str) -> bool:
    address = _parse_ip(text)
    broadcast = str(address) == "255.255.255.255"
    return not (
        broadcast or address.is_unspecified or address.is_loopback or address.is_multicast
        or address.is_link_local
    )  # fmt: skip


def _is_link_local_multicast(text: str) -> bool:
    address = _parse_ip(text)
    if address.version == 4:
        return address in ipaddress.ip_network("224.0.0.0/24")
    return address.is_multicast and address.packed[1] & 0x0F == 2


def _parse_cidr(text: str) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    if "/" not in text or not text.rpartition("/")[2].isdecimal():
        raise ValueError(f"network address parse error during conversion from string: {text!r}")
    _parse_ip(text.rpartition("/")[0])
    return ipaddress.ip_interface(text)


def _cidr(text: str) -> dict[str, Any]:
    return value_of(CIDR, str(_parse_cidr(text)))


def _contains_ip(cidr: str, address: str) -> bool:
    return _parse_ip(address) in _parse_cidr(cidr).network


def _contains_cidr(cidr: str, other: str) -> bool:
    outer, inner = _parse_cidr(cidr), _parse_cidr(other)
    return inner.ip in outer.network and outer.network.prefixlen <= inner.network.prefixlen


_ADDRESSES = (
    Signature("ip", (_S,), IP, _ip, member=False),
    Signature("isIP", (_S,), "bool", accepts(_parse_ip), member=False),
    Signature(
        "ip.isCanonical", (_S,), "bool", lambda text: str(_parse_ip(text)) == text, member=False
    ),
    Signature("family", (IP,), "int", lambda text: _parse_ip(text).version),
    Signature("isUnspecified", (IP,), "bool", lambda text: _parse_ip(text).is_unspecified),
    Signature("isLoopback", (IP,), "bool", lambda text: _parse_ip(text).is_loopback),
    Signature("isLinkLocalMulticast", (IP,), "bool", _is_link_local_multicast),
    Signature("isLinkLocalUnicast", (IP,), "bool", lambda text: _parse_ip(text).is_link_local),
    Signature("isGlobalUnicast", (IP,), "bool", _is_global_unicast),
    Signature("cidr", (_S,), CIDR, _cidr, member=False),
    Signature("isCIDR", (_S,), "bool", accepts(_parse_cidr), member=False),
    Signature("containsIP", (CIDR, _S), "bool", _contains_ip),
    Signature("containsIP", (CIDR, IP), "bool", _contains_ip),
    Signature("containsCIDR", (CIDR, _S), "bool", _contains_cidr),
    Signature("containsCIDR", (CIDR, CIDR), "bool", _contains_cidr),
    Signature("ip", (CIDR,), IP, lambda text: value_of(IP, str(_parse_cidr(text).ip))),
    Signature("prefixLength", (CIDR,), "int", lambda text: _parse_cidr(text).network.prefixlen),
    Signature("masked", (CIDR,), CIDR, lambda text: value_of(CIDR, str(_parse_cidr(text).network))),
)


# Versions

_Version = tuple[tuple[int, int, int], list[tuple[int, int, str]] | None]


def _parse_version(text: str) -> _Version:
    match = _SEMVER.fullmatch(text)
    if match is None:
        raise ValueError(f"No Major.Minor.Patch elements found in {text!r}")
    split = [
        (0, int(each), "") if each.isdecimal() else (1, 0, each)
        for each in (match[4] or "").split(".")
        if each
    ]
    return (int(match[1]), int(match[2]), int(match[3])), split or None


def _semver(text: str, normalize: bool = False) -> dict[str, Any]:
    text = _normalized(text) if normalize else text
    _parse_version(text)
    return value_of(SEMVER, text)


def _normalized(text: str) -> str:
    """Return ``v1.02`` as ``1.2.0``: without prefix and leading zeros, with three numbers."""
    parts = [_without_zeros(part) for part in text.removeprefix("v").split(".", 2)]
    if len(parts) < 3 and set("+-") & set(parts[-1]):
        raise ValueError("short version cannot contain PreRelease/Build meta data")
    return ".".join([*parts, "0", "0"][: max(3, len(parts))])


def _without_zeros(part: str) -> str:
    if len(part) < 2:
        return part
    rest = part.lstrip("0")
    return rest if rest[:1].isdecimal() else f"0{rest}"


def _compare_versions(one: str, other: str) -> int:
    (first, early), (second, late) = _parse_version(one), _parse_version(other)
    # A version without a pre-release is later than one with it.
    keys = [(numbers, split is None, split or []) for numbers, split in (
        (first, early), (second, late)
    )]  # fmt: skip
    return (keys[0] > keys[1]) - (keys[0] < keys[1])


_VERSIONS = (
    Signature("semver", (_S,), SEMVER, _semver, member=False),
    Signature("semver", (_S, "bool"), SEMVER, _semver, member=False),
    Signature("isSemver", (_S,), "bool", accepts(_parse_version), member=False),
    Signature("isSemver", (_S, "bool"), "bool", accepts(_semver), member=False),
    Signature("isGreaterThan", (SEMVER,) * 2, "bool", lambda *pair: _compare_versions(*pair) > 0),
    Signature("isLessThan", (SEMVER,) * 2, "bool", lambda *pair: _compare_versions(*pair) < 0),
    Signature("compareTo", (SEMVER,) * 2, "int", _compare_versions),
    *(
        Signature(name, (SEMVER,), "int", lambda text, at=index: _parse_version(text)[0][at])
        for index, name in enumerate(("major", "minor", "patch"))
    ),
)


SIGNATURES: tuple[Signature, ...] = (
    *_QUANTITIES,
    *_URLS,
    *_ADDRESSES,
    *_VERSIONS,
)
