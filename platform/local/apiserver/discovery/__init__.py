"""Served kinds, and the discovery and OpenAPI documents."""
