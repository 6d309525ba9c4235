"""What workers do: one class for each way that a job can go, as Qless wants them, with a static method that gets the job."""

import time


class Greet:
    """Done, with more data than before."""

    @staticmethod
    def process(job):
        job['greeting'] = f"Hello, {job['name']}"
        job.complete()


class Relay:
    """Handed on to the queue that its data names, and done there. A method of a queue's name is for that queue."""

    @staticmethod
    def process(job):
        job.complete(job['next'])

    @staticmethod
    def goal(job):
        job['arrived'] = True
        job.complete()


class Persist:
    """Given back until one attempt is left."""

    @staticmethod
    def process(job):
        if job.retries_left > 0:
            job.retry()
        else:
            job.complete()


class Refuse:
    """Failed by its own decision."""

    @staticmethod
    def process(job):
        job.fail('refused', f"Not for {job['name']}")


class Stumble:
    """Failed by an exception, which the worker turns into a failure."""

    @staticmethod
    def process(job):
        raise ValueError(f"{job['name']} is no number")


class Linger:
    """Never completes. Tracks itself to show that it has started, and runs until the job is cancelled, no longer running, or
    held by another worker.

    By then the worker has ended, unless it missed the message because it was not subscribed yet; then it takes the next job.
    Without a time-out of the job it ends after a while, so that a stopping worker stops.
    """

    @staticmethod
    def process(job):
        began = time.monotonic()
        job.track()
        while is_at(job) and time.monotonic() - began < 120:
            time.sleep(0.02)
        time.sleep(5)


def is_at(job):
    now = job.client.jobs[job.jid]
    return now and now.state == 'running' and now.worker_name == job.worker_name
