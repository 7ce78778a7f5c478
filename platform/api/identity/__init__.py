"""Who sends a request and what this caller may do, and the audit log of it."""
