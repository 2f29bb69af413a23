"""Machines from elsewhere: this host, nvidia-smi, NCCL topology files, descriptions, workloads."""
