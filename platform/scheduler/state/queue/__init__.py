"""Which gangs are tried in the next cycle, and what the others wait for."""
