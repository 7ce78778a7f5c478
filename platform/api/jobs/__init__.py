"""Jobs of all kinds and their pods: views, summaries, the index of lists, why a job waits."""
