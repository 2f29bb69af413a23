"""Schedules by rule: list scheduling, HEFT, CPOP, PEFT, ETF, m-SCT, m-TOPO, min-cut, and their restarts."""
