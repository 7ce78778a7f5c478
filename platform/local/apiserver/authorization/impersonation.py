"""Impersonation: requests that are handled as another user, if the caller has the right.

As kube-apiserver 1.36: the constrained modes (verbs ``impersonate:MODE`` and
``impersonate-on:MODE:VERB``) are tried first, then the verb ``impersonate``.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from urllib.parse import unquote

from ....model.validation import dns1123_subdomain_error
from ..errors.status import StatusError, bad_request
from ..http.auth import (
    ANONYMOUS,
    AUTHENTICATED_GROUP,
    IMPERSONATION_PREFIX,
    MASTERS_GROUP,
    REPEATED_HEADER,
    User,
)
from .authorizer import Authorizer, forbidden
from .rules import Attributes

_USER, _GROUP, _UID = "impersonate-user", "impersonate-group", "impersonate-uid"
_EXTRA_PREFIX = "impersonate-extra-"
_SERVICE_ACCOUNT = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")
_NODE_PREFIX = "system:node:"
_INVALID_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})")
_AUTHENTICATION = "authentication.k8s.io"

Check = Callable[[Attributes], None]
"""Raises StatusError if the impersonating user lacks a right."""


def impersonates(headers: Mapping[str, str]) -> bool:
    """Return whether there is any impersonation header; *headers* have lowercase names."""
    # Runs for each request: a generator expression costs as much again.
    for name in headers:  # noqa: SIM110
        if name.startswith(IMPERSONATION_PREFIX):
            return True
    return False


def acting_user(
    user: User, headers: Mapping[str, str], attributes: Attributes, authorizer: Authorizer
) -> User:
    """Return the user as whom a request of *user* is handled.

    Raises:
        StatusError: 400, attributes of a user without a name; 403, *user* may not impersonate.
    """
    requested = _requested_user(headers)
    if requested is None:
        return user

    def check(needed: Attributes) -> None:
        authorizer.check(user, needed)

    first_error = None
    mode = _constrained_mode(requested)
    if mode:
        try:
            check(attributes._replace(verb=f"impersonate-on:{mode}:{attributes.verb}"))
            _check_constrained(user, requested, mode, check)
            groups = ("system:nodes",) if mode == "arbitrary-node" else requested.groups
            return _with_implied_groups(replace(requested, groups=groups))
        except StatusError as error:
            first_error = error
    try:
        _check_identity(requested, "impersonate", "", check)
    except StatusError as error:
        raise first_error or error from None
    return _with_implied_groups(requested)


def _with_implied_groups(requested: User) -> User:
    groups = requested.groups
    account = _SERVICE_ACCOUNT.fullmatch(requested.name)
    if account and not groups:
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{account[1]}")
    (unauthenticated,) = ANONYMOUS.groups
    added = unauthenticated if requested.name == ANONYMOUS.name else AUTHENTICATED_GROUP
    if not {unauthenticated, added} & set(groups):
        groups = (*groups, added)
    return replace(requested, groups=groups)


def _constrained_mode(requested: User) -> str:
    """Return the constrained mode that applies to a user; empty if none does."""
    only_name = not (requested.groups or requested.uid or requested.extra)
    if _SERVICE_ACCOUNT.fullmatch(requested.name):
        return "serviceaccount" if only_name else ""
    if _node_name(requested.name):
        return "arbitrary-node" if only_name else ""
    return "user-info"


def _node_name(user: str) -> str:
    name = user.removeprefix(_NODE_PREFIX)
    return "" if name == user or dns1123_subdomain_error(name) else name


def _check_constrained(user: User, requested: User, mode: str, check: Check) -> None:
    verb = f"impersonate:{mode}"
    needed = Attributes(verb, _AUTHENTICATION, "groups")
    if "" in requested.groups:
        text = "impersonating the empty string group is not allowed"
        raise forbidden(user, needed, text)
    if MASTERS_GROUP in requested.groups:
        text = "impersonating the system:masters group is not allowed"
        raise forbidden(user, needed._replace(name=MASTERS_GROUP), text)
    for key, values in requested.extra.items():
        if not key or key != key.lower() or "" in values:
            text = f"impersonating the extra attribute {key!r} is not allowed"
            raise forbidden(user, Attributes(verb, _AUTHENTICATION, "userextras"), text)
    _check_identity(requested, verb, _AUTHENTICATION, check)


def _check_identity(requested: User, verb: str, group: str, check: Check) -> None:
    """Check the right to each part of an identity; *group* is that of users and groups."""
    account = _SERVICE_ACCOUNT.fullmatch(requested.name)
    node = _node_name(requested.name)
    if account:
        check(Attributes(verb, group, "serviceaccounts", "", account[2], account[1]))
    elif node and group:
        check(Attributes(verb, group, "nodes", name=node))
    else:
        check(Attributes(verb, group, "users", name=requested.name))
    if requested.uid:
        check(Attributes(verb, _AUTHENTICATION, "uids", name=requested.uid))
    for each in requested.groups:
        check(Attributes(verb, group, "groups", name=each))
    for key, values in requested.extra.items():
        for value in values:
            check(Attributes(verb, _AUTHENTICATION, "userextras", key, value))


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
        for value in headers[name].split(REPEATED_HEADER):
            yield value.encode("latin-1").decode(errors="replace")


def _decode_key(escaped: str) -> str:
    return escaped if _INVALID_ESCAPE.search(escaped) else unquote(escaped)
