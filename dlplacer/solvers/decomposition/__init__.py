"""Decomposition: segments, suffixes, stages and device subsets as subproblems."""
