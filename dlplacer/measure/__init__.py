"""Run plans, measure them, and compare the measurements with predictions."""
