"""The controller of Kubeflow's training jobs."""
