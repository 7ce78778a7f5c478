"""Devices that pods claim (``resource.k8s.io``): which there are, and which claim gets which."""
