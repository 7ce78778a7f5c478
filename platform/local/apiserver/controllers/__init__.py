"""The server's own controllers: garbage, namespaces, definitions, Event expiry and others."""
