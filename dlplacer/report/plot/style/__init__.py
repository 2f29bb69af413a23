"""What the pictures share: axes, colours, kinds of ops, formats."""
