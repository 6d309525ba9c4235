"""What the programs here print: one line of JSON for each thing that they saw, the same every time."""

import json
import sys

# A midnight, so that a program that begins then stays within one day of statistics.
START = 1_700_006_400.0


class Clock:
    """The time that the client sends with every command, moved by hand: locks expire without anybody waiting."""

    def __init__(self, *modules):
        self.now = START
        for module in modules:
            # Each of the client's modules asks a name `time` of its own; the rest of the process keeps the real one.
            module.time = self

    def time(self):
        return self.now

    def forward(self, seconds):
        self.now += seconds


def see(what, value):
    print(json.dumps([what, value], sort_keys=True, separators=(',', ':')))
    sys.stdout.flush()


def refused(action):
    """The name of the exception. Its text is another in each revision of Qless."""
    try:
        return action()
    except Exception as error:
        return type(error).__name__


def since_start(moment):
    return moment - START if moment else None


def document(job):
    """All that a job shows, with times as seconds since the start."""
    if job is None:
        return None
    shown = {name: getattr(job, name) for name in (
        'jid', 'klass_name', 'queue_name', 'worker_name', 'state', 'priority', 'data', 'tags', 'tracked',
        'original_retries', 'retries_left')}
    # Sets, in whatever order a Redis has them.
    shown['dependencies'], shown['dependents'] = sorted(job.dependencies), sorted(job.dependents)
    shown['expires'] = since_start(job.expires_at)
    shown['failure'] = {name: since_start(value) if name == 'when' else value for name, value in job.failure.items()}
    shown['history'] = [history_entry(entry) for entry in job.history]
    return shown


def history_entry(entry):
    return {name: since_start(value) if name == 'when' else value for name, value in entry.items()}


def jids(jobs):
    return [job.jid for job in jobs]
