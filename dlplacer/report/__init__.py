"""What a plan looks like, for people and for other tools."""
