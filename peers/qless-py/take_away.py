#!/usr/bin/env python3
"""Puts a job that is never done, and takes it away as soon as a worker is at it; again and again, until it is ended.

    take_away.py --port PORT --queue QUEUE --by cancel|timeout|put      with worker.py working on QUEUE

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
    arguments.add_argument('--by', choices=['cancel', 'timeout', 'put'], required=True)
    arguments = arguments.parse_args()
    client = connect(arguments.port, 'taker')
    begun = client.redis.pubsub()
    begun.subscribe('ql:track')
    begun.get_message(timeout=60)
    queue = client.queues[arguments.queue]
    for number in range(ROUNDS_MAX):
        # One that was cancelled is gone; any other comes back to the worker by itself.
        jid = f'{arguments.queue}-{number if arguments.by == "cancel" else 0}'
        if number == 0 or arguments.by == 'cancel':
            queue.put('jobs.Linger', {}, jid=jid)
        await_begin(begun, jid)
        if arguments.by == 'cancel':
            client.jobs[jid].cancel()
        elif arguments.by == 'timeout':
            client.jobs[jid].timeout()
        else:
            queue.put('jobs.Linger', {}, jid=jid)
    raise RuntimeError(f'{ROUNDS_MAX} jobs were taken away, and the worker goes on')


def await_begin(begun, jid):
    while (message := begun.get_message(timeout=60)) is not None:
        if message['data'] == jid:
            return
    raise TimeoutError(f'nothing was heard for a minute, and nobody has begun {jid}')


main()
