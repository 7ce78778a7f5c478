"""Kubernetes client library: API client, informers, events; alone speaks HTTP to the API server."""
