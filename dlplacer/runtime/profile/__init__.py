"""Timing of ops and links, on the devices and under the conditions of later runs."""
