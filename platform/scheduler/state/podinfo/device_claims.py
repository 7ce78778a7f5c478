"""The claims of devices that a pod names."""

from dataclasses import dataclass

from ..core_types import Pod


@dataclass(frozen=True, slots=True)
class UsedClaim:
    """A claim that a pod uses."""

    name: str
    """Of the ResourceClaim; empty if it is not created yet."""
    is_owned: bool
    """Whether it is to be owned by the pod, for which it was created from a template."""


def used_claims(pod: Pod) -> tuple[UsedClaim, ...]:
    """Return the claims of devices that *pod* uses."""
    claims = pod.spec.resource_claims
    if not claims:
        return ()
    created = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    return tuple(
        UsedClaim(each.resource_claim_name, is_owned=False)
        if each.resource_claim_name
        else UsedClaim(created.get(each.name, ""), is_owned=True)
        for each in claims
    )
