"""Solvers, which return a schedule of a problem and a lower bound: the ILP, bounds, heuristics and searches."""
