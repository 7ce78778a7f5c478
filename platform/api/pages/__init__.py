"""HTML pages on the REST API: what they show and do, they read and do over its routes."""
