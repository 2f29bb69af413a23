"""Lower bounds that need no solver: paths, areas, energetic reasoning, colocated ops."""
