"""Frozen data that every room shares: errors, units, graph, topology, options, plan, result."""
