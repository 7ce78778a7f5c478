"""The embedded cluster: API server, node agent, supervisor."""
