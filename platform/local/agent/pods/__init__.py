"""Sync of one pod: pod worker, container workers, probes, status, recovery."""
