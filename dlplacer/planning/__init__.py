"""What to do: place, compare, coarsen, pipeline, or use devices in parallel."""
