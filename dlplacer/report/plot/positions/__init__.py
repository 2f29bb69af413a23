"""Where ops, blocks of ops and machines are drawn."""
