"""The job controller: the rules of each phase, pure decisions, and their executor."""
