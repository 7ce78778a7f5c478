"""JobFlow and JobTemplate controllers: Jobs in the order of their dependencies."""
