"""The pods of a job as decisions see them, updated with each event."""
