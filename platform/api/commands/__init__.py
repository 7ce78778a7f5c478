"""Commands: which there are, how they are issued, and what became of them."""
