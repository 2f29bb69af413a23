"""Planning: place, compare, coarsen, pipeline, or use devices in parallel."""
