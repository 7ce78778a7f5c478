"""What the name of a resource says about it: native, a device of somebody's, counted or not."""

from functools import lru_cache

COMPUTE = ("cpu", "memory", "ephemeral-storage")
"""What a container can ask for on any node."""

_COUNTED = (*COMPUTE, "pods")
_COUNTED_PREFIXES = ("hugepages-", "attachable-volumes-")
_QUOTA_PREFIXES = ("count/", "requests.", "limits.")


def is_extended(name: str) -> bool:
    """Whether a resource has a domain outside kubernetes.io, as devices have."""
    return "/" in name and "kubernetes.io/" not in name


def may_overcommit(name: str) -> bool:
    """Whether a request may be below its limit: not so for huge pages and devices."""
    return not is_extended(name) and not name.startswith("hugepages-")


@lru_cache(maxsize=4096)
def is_counted(name: str) -> bool:
    """Whether nodes hand *name* out, so that schedulers count it; not so the words of quotas."""
    if name in _COUNTED or name.startswith(_COUNTED_PREFIXES):
        return True
    return "/" in name and not name.startswith(_QUOTA_PREFIXES)
