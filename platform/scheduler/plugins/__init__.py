"""Scheduler plugins: orders, filters, scores and limits."""
