"""Elastic averaging, local SGD and DiLoCo: workers and a centre that pull each other periodically."""
