"""Gangs and their tasks, and the classes of their pods."""
