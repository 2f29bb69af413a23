"""Epochs needed per number of workers, measured on one device; delayed gradient updates emulate the workers."""
