"""The only place that speaks HTTP to a Kubernetes API: client, watch cache, events, credentials."""
