"""Writes of the scheduler: bindings, statuses, scheduling gates."""
