"""The job controller: the rules of each phase, pure decisions, and the executor of their effects."""
