#!/usr/bin/env python3
"""Puts jobs for workers, waits until each has ended, and prints what became of them.

    errands.py --port PORT --queue QUEUE [--listen PORT]        with workers on QUEUE and on the queue `goal`

Each goes another way: see jobs.py. What it prints is in errands.expected if the worker is called `peer` and does what a Python one does.
"""

import argparse
import json

from outcome import show
from redis7 import connect

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
    show(client, queue, [*ERRANDS, 'dependent'])


main()
