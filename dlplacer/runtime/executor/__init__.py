"""A program compiled to closures, and the devices' threads that call them."""
