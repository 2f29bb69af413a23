"""Where ops, blocks of ops, transfers and machines are drawn."""
