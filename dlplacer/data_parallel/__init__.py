"""What data parallelism adds to a step: which parameters travel together."""
