"""Network of pods: that of the machine, or a network namespace for each pod."""
