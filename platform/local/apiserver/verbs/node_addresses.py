"""Where the agent of a node listens."""

from ..http.requests import Json

KUBELET_PORT = 10250


def host_of(node: Json) -> str:
    """Return the address of a node."""
    status = node.get("status") or {}
    by_type = {each.get("type"): each.get("address") for each in status.get("addresses") or ()}
    return str(by_type.get("InternalIP") or by_type.get("Hostname") or node["metadata"]["name"])


def agent_address(node: Json) -> tuple[str, int] | None:
    """Return host and port of a node's agent; ``None`` if it announces none, as simulated ones."""
    endpoints = (node.get("status") or {}).get("daemonEndpoints") or {}
    port = (endpoints.get("kubeletEndpoint") or {}).get("Port")
    return (host_of(node), int(port)) if port else None
