"""The scheduler cache, and the events that change it."""
