"""Jobs and queues that are created, changed and deleted as the caller."""
