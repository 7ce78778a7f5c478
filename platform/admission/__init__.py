"""Defaulting and validation of jobs and queues, as pure functions."""
