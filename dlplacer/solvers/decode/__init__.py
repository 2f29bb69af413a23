"""From an order of ops and a device rule to a schedule: one kernel each, in plain Python or machine code."""
