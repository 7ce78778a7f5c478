"""The podgroup controller: gangs for pods that no Volcano job made."""
