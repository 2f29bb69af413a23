"""Schedules from an order of ops and a device rule: one kernel per rule, in plain Python or machine code."""
