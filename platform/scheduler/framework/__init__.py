"""Scheduling framework: session, statements, plugins by extension point, feasibility, scores."""
