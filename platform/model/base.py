"""Base class of the typed API objects.

Objects are frozen, declare only the fields that Batholith reads, and are decoded once on receipt.
Unknown fields survive because writers patch and never replace (see docs/decisions).
"""

import msgspec


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """(Part of) a Kubernetes object: camelCase on the wire, defaults omitted when encoded."""
