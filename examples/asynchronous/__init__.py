"""The asynchronous methods of You, Buluç and Demmel 2017 on the cores of one machine, and their counterparts.

Processes train around a centre in shared memory: `run_async`.
"""

from asynchronous.run import AsyncResult, WorkerError, run_async
from asynchronous.worker import AsyncWorker

__all__ = ["AsyncResult", "AsyncWorker", "WorkerError", "run_async"]
