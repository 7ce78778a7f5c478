"""Commands for jobs, queues and their history, over the REST API with the caller's identity."""
