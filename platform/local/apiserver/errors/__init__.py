"""Errors of single fields and of whole requests."""
