"""What became of jobs that have ended, and of their queue, without the times."""

import time

from observe import see

HOUR, DAY = 3600, 86400


def show(client, queue, jids):
    for jid in jids:
        see(jid, ending(client.jobs[jid]))
    see('groups', client.jobs.failed())
    see('queue', queue.counts)
    # It may have been midnight since the first was put.
    see('statistics', figures(queue, {(time.time() - HOUR) // DAY, time.time() // DAY}))


def figures(queue, days):
    """Added up over the days."""
    shown = dict.fromkeys(('waits', 'runs', 'failures', 'failed', 'retries'), 0)
    for day in days:
        stats = queue.stats(day * DAY)
        shown['waits'] += stats['wait']['count']
        shown['runs'] += stats['run']['count']
        for name in ('failures', 'failed', 'retries'):
            shown[name] += stats[name]
    return shown


def ending(job):
    """What became of it, without the times."""
    return {
        'state': job.state,
        'data': job.data,
        'attempts left': job.retries_left,
        'group': job.failure.get('group'),
        # Of a stack trace the last line, which says what was wrong.
        'message': job.failure.get('message', '').strip().split('\n')[-1],
        'history': [{name: value for name, value in entry.items() if name != 'when'} for entry in job.history],
    }
