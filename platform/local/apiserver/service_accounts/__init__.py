"""Service accounts: their tokens, and what pods get of them."""
