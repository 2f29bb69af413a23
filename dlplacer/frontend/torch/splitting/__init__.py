"""Rewrites that cut an op of the traced graph into parts which together give the same result."""
