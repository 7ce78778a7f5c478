"""Descriptions of kinds, and the Go types of the built-in ones."""
