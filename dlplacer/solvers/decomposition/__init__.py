"""Decomposition: segments, suffixes, windows and device subsets as subproblems, and a master problem over segments."""
