"""Controller of CronJobs: those of Kubernetes, and Volcano's."""
