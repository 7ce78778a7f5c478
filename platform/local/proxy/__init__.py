"""Service proxy of a node: connects clients of a cluster IP to the pods behind it."""
