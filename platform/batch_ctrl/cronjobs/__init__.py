"""CronJob controller: creates Jobs at the times of a schedule."""
