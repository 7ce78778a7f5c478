"""SQL store of the REST API: the history of commands and their outcomes."""
