"""Nodes: their resources, what uses them, what they lack."""
