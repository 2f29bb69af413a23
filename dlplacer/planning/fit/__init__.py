"""Layers of a decoder on unequal devices: costs, the best split, and the bottleneck."""
