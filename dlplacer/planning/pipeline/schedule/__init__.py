"""Orders of actions and when they run: GPipe, 1F1B, interleaved and zero-bubble schedules."""
