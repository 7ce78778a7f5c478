"""Controllers of workloads and Services, which a Kubernetes cluster has of its own."""
