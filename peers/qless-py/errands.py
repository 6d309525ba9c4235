#!/usr/bin/env python3
"""Puts jobs for workers, waits until each has ended, and prints what became of them.

    errands.py --port PORT --queue QUEUE [--listen PORT]        with somebody working on QUEUE and on the queue `goal`

Each goes another way: see jobs.py. What it prints is in errands.expected if the worker is called `peer` and is a Python one.
"""

import argparse
import json
import time

from observe import see
from redis7 import connect

DAY = 86400

ERRANDS = {
    'greet': 'jobs.Greet',
    'relay': 'jobs.Relay',
    'persist': 'jobs.Persist',
    'refuse': 'jobs.Refuse',
    'stumble': 'jobs.Stumble',
    'unknown': 'nowhere.Nobody',
}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument('--port', type=int, required=True)
    arguments.add_argument('--queue', required=True)
    arguments.add_argument('--listen', type=int, help='where to hear what happened, if not at the same port')
    arguments = arguments.parse_args()
    client = connect(arguments.port, 'errands')
    began = time.time()
    log = connect(arguments.listen or arguments.port, 'errands').redis.pubsub()
    log.subscribe('ql:log')
    # The first message says that from now on everything is heard.
    log.get_message(timeout=60)
    queue = client.queues[arguments.queue]
    for jid, klass in ERRANDS.items():
        queue.put(klass, {'name': 'Ada', 'next': 'goal'}, jid=jid, retries=2)
    queue.put('jobs.Greet', {'name': 'Grace'}, jid='dependent', depends=list(ERRANDS)[:2])
    unfinished = {*ERRANDS, 'dependent'}
    while unfinished:
        message = log.get_message(timeout=60)
        if message is None:
            raise TimeoutError(f'nothing was heard for a minute, and these have not ended: {sorted(unfinished)}')
        event = json.loads(message['data'])
        if event['event'] in ('completed', 'failed'):
            unfinished.remove(event['jid'])
    log.close()
    for jid in [*ERRANDS, 'dependent']:
        see(jid, ending(client.jobs[jid]))
    see('groups', client.jobs.failed())
    see('queue', queue.counts)
    see('statistics', figures(queue, {began // DAY, time.time() // DAY}))


def figures(queue, days):
    """Added up over the days, because it may be midnight."""
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


main()
