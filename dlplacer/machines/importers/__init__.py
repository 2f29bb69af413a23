"""Import of machines: this host, nvidia-smi, NCCL topology files, descriptions, workloads."""
