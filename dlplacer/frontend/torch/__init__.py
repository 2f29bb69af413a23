"""A torch job → its graph of ATen ops, and the executable code of these ops."""
