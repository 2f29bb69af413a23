"""The epochs that a batch needs, measured on one device: workers emulated by delayed gradient updates."""
