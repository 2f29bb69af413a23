"""Schedules by rule: list scheduling, HEFT, min-cut, contiguous runs, device maps, and restarts."""
