"""Ternary gradients (Wen et al. 2017): two bits per element on the wire, in a training loop of plain PyTorch.

A gradient g becomes a scaler s and codes in {−1, 0, 1} with P(code = sign g) = |g| ÷ s, so that s · code is g on
average. `TernaryState` and `ternary_hook` make a communication hook of DistributedDataParallel of it,
`ternary_reduce_scatter` does the same for fully_shard.
"""
