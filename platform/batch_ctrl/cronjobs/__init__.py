"""CronJobs of batch/v1."""
