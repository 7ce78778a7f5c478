"""The variable ``authorizer``: checks of rights, which the server decides.

A check is a map of what is known of it so far; who decides it is set for each evaluation.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ....machinery.cel.signatures import (
    AUTHORIZER,
    DECISION,
    GROUP_CHECK,
    PATH_CHECK,
    RESOURCE_CHECK,
    Signature,
    value_of,
)

Check = dict[str, str]
"""Some of *account* (namespace and name), *path*, *group*, *resource*, *subresource*, *namespace*,
*name*."""

Decide = Callable[[Check, str], tuple[bool, str]]
"""Returns whether a check with a verb is allowed, and the reason."""

_decide: ContextVar[Decide] = ContextVar("decide")

AUTHORIZER_VALUE = value_of(AUTHORIZER, {})


@contextmanager
def deciding(decide: Decide) -> Iterator[None]:
    """Let *decide* decide the checks of expressions within the block."""
    token = _decide.set(decide)
    try:
        yield
    finally:
        _decide.reset(token)


def resource_check(check: Check) -> dict[str, Any]:
    """Return the value of ``authorizer.requestResource``."""
    return value_of(RESOURCE_CHECK, check)


def _step(name: str, key: str) -> Callable[[Check, str], dict[str, Any]]:
    return lambda check, value: value_of(name, {**check, key: value})


def _service_account(check: Check, namespace: str, name: str) -> dict[str, Any]:
    return value_of(AUTHORIZER, {"account": f"{namespace}:{name}"})


def _check(check: Check, verb: str) -> dict[str, Any]:
    allowed, reason = _decide.get()(check, verb)
    return value_of(DECISION, {"allowed": allowed, "reason": reason})


def _field(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda decision: decision[key]


SIGNATURES: tuple[Signature, ...] = (
    Signature("path", (AUTHORIZER, "string"), PATH_CHECK, _step(PATH_CHECK, "path")),
    Signature("group", (AUTHORIZER, "string"), GROUP_CHECK, _step(GROUP_CHECK, "group")),
    Signature("serviceAccount", (AUTHORIZER, "string", "string"), AUTHORIZER, _service_account),
    Signature(
        "resource", (GROUP_CHECK, "string"), RESOURCE_CHECK, _step(RESOURCE_CHECK, "resource")
    ),
    *(
        Signature(key, (RESOURCE_CHECK, "string"), RESOURCE_CHECK, _step(RESOURCE_CHECK, key))
        for key in ("subresource", "namespace", "name")
    ),
    Signature("check", (PATH_CHECK, "string"), DECISION, _check),
    Signature("check", (RESOURCE_CHECK, "string"), DECISION, _check),
    Signature("allowed", (DECISION,), "bool", _field("allowed")),
    Signature("reason", (DECISION,), "string", _field("reason")),
    Signature("errored", (DECISION,), "bool", lambda _: False),
    Signature("error", (DECISION,), "string", lambda _: ""),
)
