"""HTTP and what is Kubernetes about it: paths, users, forms of bodies."""
