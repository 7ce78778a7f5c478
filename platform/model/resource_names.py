"""Classification of resource names: native, extended, counted by the scheduler."""

from functools import lru_cache

COMPUTE = ("cpu", "memory", "ephemeral-storage")
"""Native resources of every node."""

_COUNTED = (*COMPUTE, "pods")
_COUNTED_PREFIXES = ("hugepages-", "attachable-volumes-")
_QUOTA_PREFIXES = ("count/", "requests.", "limits.")


def is_extended(name: str) -> bool:
    """Return whether *name* is an extended resource: its domain is not kubernetes.io."""
    return "/" in name and "kubernetes.io/" not in name


def may_overcommit(name: str) -> bool:
    """Return whether requests may be below limits: not for huge pages and extended resources."""
    return not is_extended(name) and not name.startswith("hugepages-")


@lru_cache(maxsize=4096)
def is_counted(name: str) -> bool:
    """Return whether schedulers count *name* as a node resource; quota-only names are not."""
    if name in _COUNTED or name.startswith(_COUNTED_PREFIXES):
        return True
    return "/" in name and not name.startswith(_QUOTA_PREFIXES)
