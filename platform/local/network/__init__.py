"""What the agent and the Service proxy share of the network of pods: programs and names."""
