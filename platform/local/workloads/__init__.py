"""Controllers of workloads and Services, as kube-controller-manager has them."""
