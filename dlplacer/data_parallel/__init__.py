"""What data parallelism adds to a step: groups of parameters, ternary gradients, elastic averaging."""
