"""A plan run beside its prediction and beside plain PyTorch."""
