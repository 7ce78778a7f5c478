"""Start reservations of gangs that wait, and what may start before them."""
