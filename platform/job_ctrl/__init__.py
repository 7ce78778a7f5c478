"""The job controller: a class per phase, pure decisions, and the shell that carries them out."""
