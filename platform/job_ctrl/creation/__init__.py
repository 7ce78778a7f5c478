"""What is created for a job, and what its pods are like before they exist."""
