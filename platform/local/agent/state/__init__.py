"""Types and pure functions of pod and container state."""
