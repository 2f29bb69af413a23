"""A pipeline plan on several processes, through torch.distributed.pipelining."""
