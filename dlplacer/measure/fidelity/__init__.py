"""A plan run and compared with its prediction and with plain PyTorch."""
