"""Pipelines: a graph cut into stages, and the order in which micro-batches pass through them, without torch."""
