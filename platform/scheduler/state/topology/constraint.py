"""What a gang requires of the network between its pods."""

from dataclasses import dataclass

from ....model.job import NetworkTopology

SOFT = "soft"


@dataclass(frozen=True, slots=True)
class TopologyConstraint:
    """The pods of a gang go into one domain, of a low tier if possible."""

    is_hard: bool
    """Whether the gang waits if no domain of an allowed tier fits it."""

    highest_tier: int | None = None
    """The highest tier allowed, if it is given as a number."""

    highest_tier_name: str = ""
    """The name of that tier, if it is given by name."""

    label: str = ""
    """The label of nodes whose values are the domains, instead of HyperNodes."""

    @property
    def described_tier(self) -> str:
        """The highest tier allowed, for people."""
        return self.label or self.highest_tier_name or str(self.highest_tier)

    def described_domains(self, count: int = 1) -> str:
        """Return which domains are allowed, for people: ``no HyperNode of tier 1 or lower``."""
        plural = "" if count == 1 else "s"
        if self.label:
            return f"value{plural} of the node label {self.label}"
        return f"HyperNode{plural} of tier {self.described_tier} or lower"


def constraint_from(topology: NetworkTopology | None) -> TopologyConstraint | None:
    """Return the constraint of a PodGroup or of a sub-group, if it has one.

    Without a highest tier, also a hard one prefers low tiers only: all nodes are a domain, too.
    """
    if topology is None:
        return None
    tier, name = topology.highest_tier_allowed, topology.highest_tier_name
    if topology.mode == SOFT or (tier is None and not name):
        return TopologyConstraint(is_hard=False)
    return TopologyConstraint(
        is_hard=True, highest_tier=tier, highest_tier_name="" if tier is not None else name
    )
