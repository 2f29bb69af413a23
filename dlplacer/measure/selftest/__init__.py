"""Whether the devices of this machine do what plans expect of them."""
