"""The recorder of the history."""
