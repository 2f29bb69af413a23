"""A torch job → its graph of ATen ops, and the executable graph that it came from."""
