"""Schedules by rule: list scheduling, HEFT, min-cut, contiguous runs and device maps."""
