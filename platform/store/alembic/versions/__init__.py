"""Revisions of the schema, numbered; append, never edit."""
