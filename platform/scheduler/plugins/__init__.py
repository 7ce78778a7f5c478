"""What can be plugged into the scheduler: orders, filters, scores, limits."""
