"""Which HyperNodes the ports of NVIDIA's Unified Fabric Manager describe, and how these are read.

A port of a computer names its leaf switch. Leaf switches that share a computer form a HyperNode of
tier 1 with all computers of these; all of them together are one of tier 2.
"""

import base64
import binascii
from collections.abc import Collection, Iterable

import msgspec

from ..kube.client.client import Client
from ..kube.client.config import Credentials
from ..model.base import ApiStruct
from ..model.hypernode import HYPERNODE, NODE, HyperNode, HyperNodeSpec
from ..model.names import SECRETS
from .configuration import UFM_SOURCE, Ufm
from .discovery import SOURCE, Discovered, is_discovered, members_of

_PORTS = "/ufmRest/resources/ports"
_TIMEOUT = 30.0
_LEAF, _SPINE = "leaf-hn-", "spine-hn"


class Port(msgspec.Struct, frozen=True):
    """A port, as the REST API of the manager returns it."""

    description: str | None = None
    system_name: str | None = None
    peer_node_name: str | None = None


class _Secret(ApiStruct, frozen=True):
    data: dict[str, str] = {}


class CredentialsError(Exception):
    """The Secret has no usable username and password."""


async def read_ports(client: Client, source: Ufm) -> tuple[Port, ...]:
    """Return the ports that the manager of *source* knows; *client* reads the Secret.

    Raises:
        CredentialsError: the Secret lacks a username or a password.
    """
    secret = await client.get(SECRETS, source.secret_name, namespace=source.namespace, view=_Secret)
    credentials = Credentials(
        server=source.endpoint,
        insecure=not source.verify_tls,
        username=_decoded(secret, "username"),
        password=_decoded(secret, "password"),
    )
    async with Client(credentials, user_agent="batholith-hypernode", timeout=_TIMEOUT) as manager:
        return await manager.get_path(_PORTS, view=tuple[Port, ...])


def discover_by_ufm(
    ports: Iterable[Port], nodes: Collection[str], existing: Collection[HyperNode]
) -> list[Discovered]:
    """Return the HyperNodes of *ports* with *nodes* of the cluster, in the order in which they are
    to be created.

    Of *existing* HyperNodes that were discovered, each name is used again for the nodes most of
    which it had, since users know it.
    """
    taken = {each.metadata.name for each in existing}
    free = {
        each.metadata.name: _nodes_of(each)
        for each in sorted(existing, key=lambda each: each.metadata.name)
        if is_discovered(each, UFM_SOURCE) and each.metadata.name.startswith(_LEAF)
    }
    found: list[Discovered] = []
    for group in _groups(ports, nodes):
        name = max(free, key=lambda each: len(free[each] & group), default="")
        if not name or not free[name] & group:
            name = next(each for i in range(len(taken) + 1) if (each := f"{_LEAF}{i}") not in taken)
            taken.add(name)
        free.pop(name, None)
        found.append(_discovered(name, 1, NODE, group))
    if found:
        found.append(_discovered(_SPINE, 2, HYPERNODE, [each.name for each in found]))
    return found


def _groups(ports: Iterable[Port], nodes: Collection[str]) -> list[set[str]]:
    """Return the nodes of leaf switches that share some, ordered by the smallest name."""
    by_leaf: dict[str, set[str]] = {}
    for each in ports:
        leaf, node = each.peer_node_name, each.system_name
        if "Computer" in (each.description or "") and leaf and node and node in nodes:
            by_leaf.setdefault(leaf, set()).add(node)
    groups: list[set[str]] = []
    for group in by_leaf.values():
        connected = [each for each in groups if each & group]
        groups = [each for each in groups if not each & group]
        groups.append(group.union(*connected))
    return sorted(groups, key=min)


def _discovered(name: str, tier: int, kind: str, members: Collection[str]) -> Discovered:
    spec = HyperNodeSpec(tier=tier, members=tuple(members_of(kind, members)))
    return Discovered(name, {SOURCE: UFM_SOURCE}, spec)


def _nodes_of(hypernode: HyperNode) -> set[str]:
    selectors = (each.selector.exact_match for each in hypernode.spec.members)
    return {each.name for each in selectors if each is not None}


def _decoded(secret: _Secret, key: str) -> str:
    try:
        value = base64.b64decode(secret.data.get(key, ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        value = ""
    if not value:
        raise CredentialsError(f"the Secret has no usable {key}")
    return value
