"""Topologies of real machines (this host, NVIDIA's tools and libraries, other programs), and their costs."""
