"""Ops on devices by loads and memory: the questions in which the order of ops plays no part."""
