"""Informers: a local copy of one resource, kept by list and watch."""
