"""Layers of a decoder over unequal devices: costs, the best split, and what binds."""
