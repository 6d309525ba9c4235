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
    """Never done. Says that it began by having itself tracked, and goes on until long after the job was taken away: until it is gone,
    is no longer running, or runs for somebody else.

    By then the worker has ended, unless it was not told because it did not listen yet. Then it goes on with the next job. If nobody
    takes it away it ends all the same, so that a worker that is told to stop does.
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
