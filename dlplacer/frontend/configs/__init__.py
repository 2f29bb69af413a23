"""Decoders by their files without weights: config.json, the header of a GGUF file, the index of safetensors."""
