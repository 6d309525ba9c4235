#!/usr/bin/env python3
"""Puts a job that is never done, and cancels it as soon as a worker is at it; again and again, until it is ended.

    take_away.py --port PORT --queue QUEUE      with worker.py working on QUEUE

The worker ends when it is told that its job was taken away. It is told on a channel that it subscribes to in its own time, so that
it may miss the first one; then it finds out by itself and goes on to the next.
"""

import argparse

from redis7 import connect

ROUNDS_MAX = 1000


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument('--port', type=int, required=True)
    arguments.add_argument('--queue', required=True)
    arguments = arguments.parse_args()
    client = connect(arguments.port, 'taker')
    begun = client.redis.pubsub()
    begun.subscribe('ql:track')
    begun.get_message(timeout=60)
    for number in range(ROUNDS_MAX):
        jid = f'linger-{number}'
        client.queues[arguments.queue].put('jobs.Linger', {}, jid=jid)
        while (begun.get_message(timeout=60) or {}).get('data') != jid:
            pass
        client.jobs[jid].cancel()
    raise RuntimeError(f'{ROUNDS_MAX} jobs were taken away, and the worker goes on')


main()
