"""Controller of Kubernetes' own Jobs (batch/v1)."""
