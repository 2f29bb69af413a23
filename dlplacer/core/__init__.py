"""Frozen data that every package shares: errors, units, graph, topology, options, plan, tables."""
