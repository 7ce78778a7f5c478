"""Nodes that are held for pods which do not exist yet or are pending."""
