"""How every typed object of the wire is declared.

Objects are frozen, hold the fields that we read, and are decoded once at the door; fields that
we do not know survive because writers patch and never replace (see docs/decisions).
"""

import msgspec


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A piece of a Kubernetes object: camelCase on the wire, defaults left out when written."""
