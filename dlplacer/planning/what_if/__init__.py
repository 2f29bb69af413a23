"""Changes that would help: a plan's problem solved again with one thing changed."""
