"""Volumes of pods: contents, projected sources, PVC directories."""
