"""Actions of a scheduling cycle, one per module."""
