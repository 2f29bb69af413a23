"""A torch job → its dataflow graph, and the executable code of the graph's ops; nothing is allocated."""

from dlplacer.frontend.torch.capture import Captured, capture, capture_job
from dlplacer.frontend.torch.job import Job, Optimizer

__all__ = ["Captured", "Job", "Optimizer", "capture", "capture_job"]
