"""What all solvers work on: the instance in integers, schedules of it, and the best one so far."""
