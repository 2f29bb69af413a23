"""Ternary gradients (TernGrad, Wen et al. 2017): their codec, their noise, their bytes, and when they pay."""
