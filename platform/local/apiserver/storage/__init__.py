"""Object storage: the database, the objects in memory, and watches on them."""
