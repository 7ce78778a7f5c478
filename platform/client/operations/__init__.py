"""What the REST API can do, as operations without I/O (:mod:`..effects`)."""
