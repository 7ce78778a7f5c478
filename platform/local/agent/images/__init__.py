"""Container images: their store, archives, registries, and which containers run them."""
