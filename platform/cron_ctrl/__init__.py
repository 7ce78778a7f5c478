"""Controller of Volcano's CronJobs, whose Jobs are Volcano's."""
