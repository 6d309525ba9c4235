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

from qless.workers.serial import SerialWorker

from redis7 import connect

LOST = 3


class Worker(SerialWorker):
    def __init__(self, *args, **kwargs):
        SerialWorker.__init__(self, *args, **kwargs)
        self.listening = threading.Event()

    def listen(self, listener):
        subscribe = listener._pubsub.subscribe

        def subscribe_and_say_so(channels):
            subscribe(channels)
            self.listening.set()

        listener._pubsub.subscribe = subscribe_and_say_so
        SerialWorker.listen(self, listener)

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
        threading.Thread(target=stop_at_the_end_of_input, args=[worker], daemon=True).start()
        print('ready', flush=True)
        worker.run()


def stop_at_the_end_of_input(worker):
    # By descriptor, so that nothing is left locked in an object when the process ends in the middle of a read.
    while os.read(sys.stdin.fileno(), 1024):
        pass
    # The package unsubscribes when it stops, and waits for the thread that listens. If the subscription is not yet complete in the
    # client, even if the server has confirmed it, the library forgets that it has unsubscribed, and the thread never ends.
    if not worker.listening.wait(60):
        print('worker.py: for a minute the worker did not listen', file=sys.stderr, flush=True)
        os._exit(1)
    worker.stop()


main()
