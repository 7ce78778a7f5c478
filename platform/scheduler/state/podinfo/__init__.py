"""What a pod requests and requires: resources, host ports, terms, volumes, traits."""
