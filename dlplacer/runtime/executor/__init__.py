"""Compile a program to straight-line functions, and call them on the devices' threads."""
