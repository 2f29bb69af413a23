"""Plans in the formats of other tools."""
