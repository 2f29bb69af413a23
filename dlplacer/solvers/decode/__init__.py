"""From an order of ops and a rule for their devices to a schedule: one kernel each, plain Python or machine code."""
