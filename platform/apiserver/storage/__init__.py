"""Where the objects are: a file, the memory above it, and the watches on that."""
