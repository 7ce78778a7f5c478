"""The server's own controllers: garbage, namespaces, definitions, old events."""
