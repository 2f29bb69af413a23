"""Adapters to torch's tracing: the joint graph of forward and backward, and passes over it."""
