"""Simulated nodes: pods that follow a plan instead of running processes."""
