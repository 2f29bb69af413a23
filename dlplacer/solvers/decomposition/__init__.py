"""Decomposition: segments, suffixes, windows and device subsets as subproblems."""
