"""Shared basis of the HTTP servers: accepting connections, and limits on client requests."""
