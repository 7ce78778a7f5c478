"""Logs of containers, and those of all pods of a job as one text."""
