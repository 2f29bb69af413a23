"""Topologies of real machines from this host, NVIDIA's tools and libraries and other programs, and their costs."""
