"""From an sbatch script, or a command, to the manifest of a Volcano job. Pure functions."""
