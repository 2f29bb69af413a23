"""Measurement, on one device, of the epochs that a batch needs; delayed gradient updates emulate the workers."""
