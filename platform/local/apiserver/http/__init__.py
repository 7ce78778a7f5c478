"""HTTP layer: connections, paths, authentication, encodings of bodies."""
