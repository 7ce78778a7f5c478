"""The SQL tables of the REST API: who commanded what, when, and what came of it."""
