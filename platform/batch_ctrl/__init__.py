"""Controllers of batch/v1: Jobs and CronJobs."""
