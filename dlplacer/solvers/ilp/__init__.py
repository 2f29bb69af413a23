"""Equations 7 to 13 as a CP-SAT model. Only this package imports ortools."""
