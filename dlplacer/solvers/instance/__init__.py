"""Shared by all solvers: the instance in integers, schedules of it, and the best one so far."""
