"""Devices of the machine: which there are, and which container has which."""
