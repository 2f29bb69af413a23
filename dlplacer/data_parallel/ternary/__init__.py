"""Ternary gradients (Wen et al. 2017): two bits per element on the wire, in a plain PyTorch training loop.

A gradient g becomes a scaler s and codes in {−1, 0, 1} with P(code = sign g) = |g| ÷ s, so that s · code is g on
average. `TernaryState` and `ternary_hook` are a communication hook for DistributedDataParallel, and
`ternary_reduce_scatter` is for fully_shard.
"""
