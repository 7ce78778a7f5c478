"""Controller of CronJobs of any kind: Kubernetes' own, and Volcano's."""
