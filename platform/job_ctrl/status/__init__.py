"""From what is observed of a job to its next phase and status. Pure."""
