"""What sub-commands print and write."""
