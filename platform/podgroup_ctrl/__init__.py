"""PodGroup controller: PodGroups for pods that are not part of a Volcano job."""
