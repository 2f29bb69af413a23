"""When to use what: step time × steps × epochs over every way to use N devices (sections 3–5 of the paper)."""
