"""Shared parts of heuristics: priorities, queues, insertion, memory so far."""
