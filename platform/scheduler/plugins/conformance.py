"""``conformance``: protects critical pods from eviction.

The scheduler does not evict yet, so the plugin has no extension point; it exists because Volcano's
default configuration names it.
"""

from collections.abc import Mapping


class ConformancePlugin:
    """A plugin without extension points."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Ignore the arguments: there are none."""
