"""What runs only on one machine: the embedded API server, the node agent, their supervisor."""
