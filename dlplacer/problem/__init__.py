"""A problem in integers, and schedules back in seconds: routes, delays, transfers, memory over time, replay."""
