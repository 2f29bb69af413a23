"""A program compiled to straight-line functions, and the devices' threads that call them."""
