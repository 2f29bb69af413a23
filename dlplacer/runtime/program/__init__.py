"""Programs: the actions of every device in order, their lowering from plans, and the checks before a run."""
