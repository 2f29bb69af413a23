"""Equations 7 to 13 of Pal et al. 2019 as CP-SAT models, and searches on these models."""
