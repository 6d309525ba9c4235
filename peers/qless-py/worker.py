#!/usr/bin/env python3
"""The client's own serial worker: one process that pops from queues and runs the classes of jobs.py.

    worker.py --port PORT --name NAME --queue QUEUE [--queue QUEUE ...]

Says `ready` when it is about to begin, and ends when its standard input does, after the job that it is at. When it hears that the
job it is at was taken away it says `lost <jid>` and ends at once, with the exit code 3.
"""

import argparse
import os
import sys
import tempfile
import threading
import time

from qless.workers.serial import SerialWorker

from redis7 import connect

LOST = 3


class Worker(SerialWorker):
    def kill(self, jid):
        # What the package does here is meant to end the process. It is called on the thread that listens, and ends only that.
        print(f'lost {jid}', flush=True)
        os._exit(LOST)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument('--port', type=int, required=True)
    arguments.add_argument('--name', required=True)
    arguments.add_argument('--queue', action='append', required=True)
    arguments = arguments.parse_args()
    client = connect(arguments.port, arguments.name)
    with tempfile.TemporaryDirectory() as sandbox:
        # The interval is how long it sleeps when there is nothing to do.
        worker = Worker(arguments.queue, client, interval=0.05, workdir=sandbox, sandbox=sandbox)
        channel = f'ql:w:{arguments.name}'
        threading.Thread(target=stop_at_the_end_of_input, args=[worker, client, channel], daemon=True).start()
        print('ready', flush=True)
        worker.run()


def stop_at_the_end_of_input(worker, client, channel):
    # By descriptor, so that nothing is left locked in an object when the process ends in the middle of a read.
    while os.read(sys.stdin.fileno(), 1024):
        pass
    # What the package does when it stops is to end the thread that listens. If that has not begun to, it is never told, and waited for.
    began = time.monotonic()
    while not client.redis.pubsub_numsub(channel)[0][1]:
        if time.monotonic() - began > 60:
            print(f'worker.py: for a minute nobody listened on {channel}', file=sys.stderr, flush=True)
            os._exit(1)
        time.sleep(0.01)
    worker.stop()


main()
