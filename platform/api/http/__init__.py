"""HTTP: queries, pages, preconditions, middleware and long responses."""
