"""What the scheduler would do with a job that does not exist, and what would change that."""
