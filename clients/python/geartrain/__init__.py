"""Client and worker for geartrain, a job queue. No dependencies.

    from geartrain import Client
    jid = Client().put("mail", "welcome", {"to": "ann"}, keep_result=True)
"""

from .client import Client, Result
from .errors import (BadArgument, GeartrainError, JobFailed, LockLost, NoCapableWorker, NoResult, NoSuchJob, QueueFull,
                     TooLarge, Unavailable, Unfinished, Unsupported)
from .worker import Fail, Job, Retry, Worker

__all__ = ["BadArgument", "Client", "Fail", "GeartrainError", "Job", "JobFailed", "LockLost", "NoCapableWorker",
           "NoResult", "NoSuchJob", "QueueFull", "Result", "Retry", "TooLarge", "Unavailable", "Unfinished",
           "Unsupported", "Worker"]
