"""Impersonation: requests of the administrator or of the REST API, handled as another user.

There are no roles, so impersonation changes only who is named in reviews and to admission. Other
components and users may not impersonate.
"""

import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from ..errors.status import StatusError, bad_request, cannot_impersonate, denied
from .auth import ANONYMOUS, AUTHENTICATED_GROUP, User, allows_anonymous
from .routes import parse_path

HEADER_PREFIX = "impersonate-"
REPEATED = "\n"
"""Separates the values of a repeated header, which cannot contain it."""

MASTERS_GROUP = "system:masters"
IMPERSONATOR = "api"
"""Name of the REST API's user."""

_USER, _GROUP, _UID = "impersonate-user", "impersonate-group", "impersonate-uid"
_EXTRA_PREFIX = "impersonate-extra-"
_SERVICE_ACCOUNT = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")
_NODE_PREFIX = "system:node:"
_INVALID_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def impersonates(headers: Mapping[str, str]) -> bool:
    """Return whether there is any impersonation header; *headers* have lowercase names."""
    # Runs for each request: a generator expression costs as much again.
    for name in headers:  # noqa: SIM110
        if name.startswith(HEADER_PREFIX):
            return True
    return False


def acting_user(user: User, headers: Mapping[str, str], *, method: str, path: str) -> User:
    """Return the user as whom a request of *user* is handled.

    Raises:
        StatusError: 400, attributes of a user without a name; 403, *user* may not impersonate, or
            the impersonated user is not authenticated.
    """
    requested = _requested_user(headers)
    if requested is None:
        return user
    if not (MASTERS_GROUP in user.groups or user.name == IMPERSONATOR):
        raise _forbidden(user, requested, method=method, path=path)
    groups = requested.groups
    account = _SERVICE_ACCOUNT.fullmatch(requested.name)
    if account and _GROUP not in headers:
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{account[1]}")
    (unauthenticated,) = ANONYMOUS.groups
    added = unauthenticated if requested.name == ANONYMOUS.name else AUTHENTICATED_GROUP
    if not {unauthenticated, added} & set(groups):
        groups = (*groups, added)
    if AUTHENTICATED_GROUP not in groups and not allows_anonymous(path):
        raise denied(requested.name, **_attributes(method, path))
    return User(name=requested.name, uid=requested.uid, groups=groups, extra=requested.extra)


def _requested_user(headers: Mapping[str, str]) -> User | None:
    """Return the user in the headers; ``None`` if there is none."""
    name = next(_values(headers, _USER), "")
    found = User(
        name=name,
        uid=next(_values(headers, _UID), ""),
        groups=tuple(_values(headers, _GROUP)),
        extra={
            _decode_key(header.removeprefix(_EXTRA_PREFIX)): tuple(_values(headers, header))
            for header in headers
            if header.startswith(_EXTRA_PREFIX)
        },
    )
    if name:
        return found
    if found.uid or found.groups or found.extra:
        raise bad_request(f"requested {found} without impersonating a user name")
    return None


def _values(headers: Mapping[str, str], name: str) -> Iterator[str]:
    """Yield the values of a header, which are UTF-8."""
    if name in headers:
        for value in headers[name].split(REPEATED):
            yield value.encode("latin-1").decode(errors="replace")


def _decode_key(escaped: str) -> str:
    return escaped if _INVALID_ESCAPE.search(escaped) else unquote(escaped)


def _forbidden(user: User, requested: User, *, method: str, path: str) -> StatusError:
    """Return the error with the constraint that kube-apiserver names."""
    account = _SERVICE_ACCOUNT.fullmatch(requested.name)
    if account and (requested.groups or requested.uid or requested.extra):
        return cannot_impersonate(user.name, "serviceaccounts", account[2], namespace=account[1])
    if requested.name.startswith(_NODE_PREFIX):
        return cannot_impersonate(user.name, "users", requested.name)
    attributes = _attributes(method, path)
    mode = "serviceaccount" if account else "user-info"
    attributes["verb"] = f"impersonate-on:{mode}:{attributes['verb']}"
    return denied(user.name, **attributes)


def _attributes(method: str, path: str) -> dict[str, str]:
    """Return verb and object of a request, as an authorizer sees them."""
    info = parse_path(path)
    if info is None:
        return {"verb": method.lower(), "path": path}
    target = info.object_path
    verb = _VERBS.get(method) or ("get" if target.name else "list")
    if method == "DELETE" and not target.name:
        verb = "deletecollection"
    return {
        "verb": verb,
        "group": info.group,
        "plural": info.plural,
        "name": target.name,
        "namespace": target.namespace,
    }
