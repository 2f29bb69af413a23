"""What several heuristics share: priorities, queues, insertion, memory so far."""
