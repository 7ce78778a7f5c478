"""The HyperNode controller, on kopf: counts the nodes of HyperNodes, and creates those that labels
of nodes describe."""
