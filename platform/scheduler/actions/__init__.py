"""What a cycle does, one story a module."""
