"""Topologies of real machines, from this host, NVIDIA's tools and other programs; and costs of ops and transfers."""
