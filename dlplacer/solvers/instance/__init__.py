"""Code shared by all solvers: the integer instance, its schedules, and the incumbent."""
