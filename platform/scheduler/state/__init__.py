"""The scheduler's model of the cluster: nodes, gangs, queues, PVCs."""
