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
    if not name and verb in ("list", "watch"):
        name = _selected_name(query.get("fieldSelector", ""))
    # As kube-apiserver: the namespace of a Namespace is itself.
    of_itself = info.plural == "namespaces" and not target.namespace
    return Attributes(
        verb,
        info.group,
        info.plural,
        target.subresource,
        name,
        target.name if of_itself else target.namespace,
    )


def _selected_name(field_selector: str) -> str:
    """Return the one name that a selector allows, if there is such."""
    if "metadata.name" not in field_selector:
        return ""
    try:
        requirements = parse_field_selector(field_selector)
    except SelectorError:
        return ""
    for requirement in requirements:
        if requirement.path == "metadata.name" and requirement.operator == "=":
            value = requirement.value
            return "" if value in (".", "..") or "/" in value or "%" in value else value
    return ""
