"""Handlers of each verb: get, list, watch, create, update, patch, delete, and subresources."""
