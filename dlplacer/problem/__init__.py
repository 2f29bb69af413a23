"""Graph × topology × options → integers, and back to seconds: routes, delays, transfers, memory over time, replay."""
