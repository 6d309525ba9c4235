#!/usr/bin/env python3
"""A worker made with `gear`.

    gear_worker.py --port PORT FUNCTION...

Says `took` for each job. What the functions do is told in README.md.
"""

import argparse

import gear

from lines import say, took, wait_to_go_on


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument('--port', type=int, required=True)
    arguments.add_argument('functions', nargs='+')
    arguments = arguments.parse_args()
    worker = gear.Worker('gear-worker')
    worker.addServer('127.0.0.1', arguments.port)
    worker.waitForServer()
    for function in arguments.functions:
        worker.registerFunction(function)
    say(ready=True)
    while True:
        do(worker.getJob())


def do(job):
    took(job.name, job.unique, job.arguments)
    payload = job.arguments
    if job.name == 'echo':
        job.sendWorkComplete(payload)
    elif job.name == 'reverse':
        job.sendWorkComplete(payload[::-1])
    elif job.name == 'steps':
        job.sendWorkData(b'one')
        job.sendWorkWarning(b'careful')
        job.sendWorkStatus(1, 2)
        job.sendWorkData(b'two')
        job.sendWorkComplete(b'done')
    elif job.name == 'fail':
        job.sendWorkFail()
    elif job.name == 'raise':
        job.sendWorkException(payload)
    elif job.name == 'hold':
        job.sendWorkStatus(1, 4)
        wait_to_go_on()
        job.sendWorkComplete(payload)


main()
