"""Name server of a node: names of Services and their pods; all others are asked elsewhere."""
