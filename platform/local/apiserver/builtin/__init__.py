"""The built-in kinds: their table, defaults and validation."""
