"""Where a model may be cut into stages, and the best cuts."""
