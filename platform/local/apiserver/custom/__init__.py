"""Custom kinds: their definitions and schemas."""
