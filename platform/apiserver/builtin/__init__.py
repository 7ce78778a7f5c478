"""The built-in kinds: their table, and the defaults and checks of each."""
