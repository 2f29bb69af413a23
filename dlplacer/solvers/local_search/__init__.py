"""Local search on whole schedules with link contention, compiled."""
