"""Problem → schedule and lower bound: the ILP, its bounds, and the heuristics that serve as baselines."""
