"""How long gangs may run, and are expected to."""
