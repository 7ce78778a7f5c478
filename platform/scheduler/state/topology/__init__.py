"""The topology of the network: HyperNodes, or labels of nodes, as domains of nodes."""
