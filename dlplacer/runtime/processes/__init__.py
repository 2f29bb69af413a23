"""CPU devices as processes: forked workers that share tensors with the caller's process and spin for a short while."""
