"""Which kinds are served, and the documents that tell clients."""
