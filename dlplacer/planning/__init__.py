"""Planning: place, compare, coarsen and pipeline graphs, or use devices in parallel."""
