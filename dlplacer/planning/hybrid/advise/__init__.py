"""Rules of thumb made exact (Zou et al. 2017): mini-batch and algorithms, number of GPUs, number of servers."""
