"""Gangs of other controllers' pods: which pods are one, and how many of them must run together."""
