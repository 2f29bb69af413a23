"""Machines from elsewhere: this host, NVML, nvidia-smi, NCCL topology files, node-link graphs."""
