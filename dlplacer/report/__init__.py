"""Views of a plan for people and for other tools."""
