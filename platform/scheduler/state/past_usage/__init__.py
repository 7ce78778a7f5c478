"""What queues and users have used in the past."""
