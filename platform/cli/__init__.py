"""The command line; it assembles everything and nothing imports it."""
