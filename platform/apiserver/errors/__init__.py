"""What is refused, and why: one field of an object, or a whole request."""
