"""Admission that users configure: webhooks over HTTPS, and policies in CEL."""
