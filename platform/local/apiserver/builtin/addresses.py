"""Addresses of IP in fields of built-in kinds."""

import ipaddress
import re
from ipaddress import IPv4Address, IPv6Address

NOT_AN_ADDRESS = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"

_LEADING_ZEROS = re.compile(r"(?<![0-9a-fA-F:])0+(?=[0-9])")


def address_error(text: str) -> str:
    """Validate an address, which need not have the canonical form."""
    address = parse_address(text)
    if address is None:
        leading = ":" not in text and parse_address(without_zeros(text)) is not None
        return "must not have leading 0s" if leading else NOT_AN_ADDRESS
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return "must not be an IPv4-mapped IPv6 address"
    return ""


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address, without a zone; ``None`` for other texts."""
    try:
        return None if "%" in text else ipaddress.ip_address(text)
    except ValueError:
        return None


def without_zeros(text: str) -> str:
    """Return an address of IPv4 without leading zeros in its numbers."""
    return text if ":" in text else _LEADING_ZEROS.sub("", text)
