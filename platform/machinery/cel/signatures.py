"""How functions of CEL are declared here, and the values of Kubernetes' own types.

The library has no values of abstract types, so such a value is a map of one entry: the name of its
type, and a value that is equal for equal values. Expressions are checked with abstract types, and
evaluated with maps, see :mod:`.environment`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

QUANTITY = "kubernetes.Quantity"
URL = "kubernetes.URL"
IP = "net.IP"
CIDR = "net.CIDR"
SEMVER = "kubernetes.Semver"
FORMAT = "kubernetes.NamedFormat"
AUTHORIZER = "kubernetes.authorization.Authorizer"
PATH_CHECK = "kubernetes.authorization.PathCheck"
GROUP_CHECK = "kubernetes.authorization.GroupCheck"
RESOURCE_CHECK = "kubernetes.authorization.ResourceCheck"
DECISION = "kubernetes.authorization.Decision"
OBJECT = "Object"
NESTED_OBJECT = "Object field"
"""An object of any type below ``Object``: which it is, is known at run time alone."""

PATCH = "JSONPatch"
ABSTRACT_TYPES = frozenset(
    (
        QUANTITY, URL, IP, CIDR, SEMVER, OBJECT, NESTED_OBJECT, PATCH,
        FORMAT,
        AUTHORIZER, PATH_CHECK, GROUP_CHECK, RESOURCE_CHECK, DECISION,
    )
)  # fmt: skip

ANY = "any"
"""Type of parameters that accept each value."""


class Signature(NamedTuple):
    """One overload of a function.

    Its types are names as in CEL, those above, or ``any``. The implementation gets Python values,
    of the abstract types the inner value, and raises ValueError with the message of the error.
    """

    name: str
    parameters: tuple[str, ...]
    result: str
    call: Callable[..., Any]
    member: bool = True
    """Whether the first parameter is the receiver."""


def value_of(name: str, inner: Any) -> dict[str, Any]:
    """Return a value of an abstract type."""
    return {name: inner}
