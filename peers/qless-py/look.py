#!/usr/bin/env python3
"""Prints the state of jobs of other processes, as errands.py does for its own.

    look.py --port PORT --queue QUEUE JID ...
"""

import argparse

from outcome import show
from redis7 import connect


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument('--port', type=int, required=True)
    arguments.add_argument('--queue', required=True)
    arguments.add_argument('jids', nargs='+', metavar='JID')
    arguments = arguments.parse_args()
    client = connect(arguments.port, 'look')
    show(client, client.queues[arguments.queue], arguments.jids)


main()
