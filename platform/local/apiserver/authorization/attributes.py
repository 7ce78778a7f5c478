"""What a request does, as the authorizer sees it: from its method, path and query."""

from collections.abc import Mapping

from ....model.selectors import SelectorError, parse_field_selector
from ..http.routes import RequestInfo
from .rules import Attributes

_VERBS = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}

_SELECTING_VERBS = ("list", "watch", "deletecollection")


def request_attributes(
    method: str, path: str, query: Mapping[str, str], info: RequestInfo | None
) -> Attributes:
    """Return the attributes of a request; *info* is its parsed path."""
    if info is None:
        return Attributes(method.lower(), path=path)
    target = info.object_path
    name = target.name
    verb = _VERBS.get(method, "")
    if info.watch:
        verb = "watch"
    elif not name and verb == "get":
        watch = query.get("watch")
        verb = "list" if watch is None or watch.lower() in ("false", "0") else "watch"
    elif not name and verb == "delete":
        verb = "deletecollection"
    field_selector = query.get("fieldSelector", "") if verb in _SELECTING_VERBS else ""
    if not name and verb != "deletecollection":
        name = _selected_name(field_selector)
    # As kube-apiserver: the namespace of a Namespace is itself.
    of_itself = info.plural == "namespaces" and not target.namespace
    return Attributes(
        verb,
        info.group,
        info.plural,
        target.subresource,
        name,
        target.name if of_itself else target.namespace,
        node=selected_node(field_selector),
    )


def selected_node(field_selector: str) -> str:
    """Return the one node that a selector allows, if there is such."""
    return _selected("spec.nodeName", field_selector)


def _selected_name(field_selector: str) -> str:
    """Return the one name that a selector allows, if there is such."""
    name = _selected("metadata.name", field_selector)
    return "" if name in (".", "..") or "/" in name or "%" in name else name


def _selected(path: str, field_selector: str) -> str:
    if path not in field_selector:
        return ""
    try:
        requirements = parse_field_selector(field_selector)
    except SelectorError:
        return ""
    for requirement in requirements:
        if requirement.path == path and requirement.operator == "=":
            return requirement.value
    return ""
