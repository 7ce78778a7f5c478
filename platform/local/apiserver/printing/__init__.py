"""Table rows of objects, as kubectl prints them."""
