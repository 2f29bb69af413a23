"""A plan as one HTML file."""
