"""Programs: each device's actions in order, the lowering of plans to programs, and the checks before a run."""
