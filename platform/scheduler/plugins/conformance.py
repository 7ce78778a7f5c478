"""``conformance``: spares what the system itself needs when others are evicted.

Nothing is evicted yet, so there is nothing to spare; the name is known because every shipped
configuration carries it.
"""

from collections.abc import Mapping


class ConformancePlugin:
    """Has no say in placing."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Take no arguments."""
