"""Certificates of nodes: which requests are signed and approved, as kube-controller-manager does.

Pure functions of a CertificateSigningRequest and of what is known of the nodes.
"""

from collections.abc import Collection, Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.x509.oid import NameOID

from ....machinery.x509 import subject_values
from ....model import validation
from ....model.node_identity import (
    CLIENT_SIGNER,
    NODES_GROUP,
    SERVING_SIGNER,
    USAGES,
    USER_PREFIX,
)
from .certificate_requests import parse_request

_KEY_USAGES = {"digital signature", "key encipherment"}


class NodeRequest(NamedTuple):
    """A request for a certificate of a node that may be signed."""

    node: str
    addresses: tuple[IPv4Address | IPv6Address, ...]
    dns_names: tuple[str, ...]
    parsed: x509.CertificateSigningRequest


def read(request: Mapping[str, Any]) -> NodeRequest | str:
    """Return what a request of one of the signers of nodes asks for, or why it is not signed."""
    spec = request["spec"]
    signer, usages = spec["signerName"], tuple(spec.get("usages") or ())
    parsed = parse_request(spec.get("request", ""))
    if isinstance(parsed, str):
        return parsed
    if subject_values(parsed.subject, NameOID.ORGANIZATION_NAME) != (NODES_GROUP,):
        return "subject organization is not system:nodes"
    names = subject_values(parsed.subject, NameOID.COMMON_NAME)
    if len(names) != 1 or not names[0].startswith(USER_PREFIX):
        return "subject common name does not begin with system:node:"
    node = names[0].removeprefix(USER_PREFIX)
    if problem := validation.dns1123_subdomain_error(node):
        return f"{node!r} is no name of a node: {problem}"
    _, purpose = USAGES[signer]
    if {purpose, "digital signature"} - set(usages) or set(usages) - {purpose, *_KEY_USAGES}:
        return f"usages did not match {purpose}, digital signature, key encipherment"
    try:
        found = _alternative_names(parsed)
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        return f"the extensions cannot be read: {error}"
    dns = tuple(found.get_values_for_type(x509.DNSName))
    addresses = tuple(
        each
        for each in found.get_values_for_type(x509.IPAddress)
        if isinstance(each, IPv4Address | IPv6Address)
    )
    if len(dns) + len(addresses) != len(list(found)):
        return "only DNS and IP subjectAltNames are allowed"
    if signer == CLIENT_SIGNER and list(found):
        return "subjectAltNames are not allowed"
    if signer == SERVING_SIGNER and not list(found):
        return "DNS or IP subjectAltName is required"
    return NodeRequest(node, addresses, dns, parsed)


def _alternative_names(
    parsed: x509.CertificateSigningRequest,
) -> x509.SubjectAlternativeName:
    try:
        extension = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return x509.SubjectAlternativeName([])
    return extension.value


def is_own(request: Mapping[str, Any], node: str) -> bool:
    """Return whether *node* itself asks."""
    spec = request["spec"]
    return bool(
        spec.get("username") == f"{USER_PREFIX}{node}" and NODES_GROUP in (spec.get("groups") or ())
    )


def serving_problem(
    wanted: NodeRequest, *, others: Mapping[str, str], reserved: Collection[str]
) -> str:
    """Return why a serving certificate is not approved automatically; empty if it is.

    *others* are the names of other nodes by address, *reserved* the addresses of the API server.
    """
    if wanted.dns_names or len(wanted.addresses) != 1:
        return "only one IP address is approved automatically"
    (address,) = wanted.addresses
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        return f"{address} is not an address of one machine"
    if str(address) in reserved:
        return f"{address} is the address of the API server"
    if str(address) in others:
        return (
            f"{address} is the address of node {others[str(address)]}: if that machine is not "
            f"used any more, `kubectl delete node {others[str(address)]}`"
        )
    return ""
