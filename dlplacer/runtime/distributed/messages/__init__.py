"""Tensors between processes: order of messages, wire format, transport."""
