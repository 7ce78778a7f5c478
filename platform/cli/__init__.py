"""Command-line interface: assembles the other packages; none of them imports it."""
