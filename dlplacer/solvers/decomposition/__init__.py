"""Decomposition: sections, suffixes, stages and device subsets as subproblems."""
