#!/usr/bin/env python3
"""A worker made with `python3_gearman`.

    gearman_worker.py --port PORT FUNCTION...

Says `took` for each job. What the functions do is told in README.md.
"""

import argparse

import python3_gearman

from lines import say, to_text, took, wait_to_go_on


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument('--port', type=int, required=True)
    arguments.add_argument('functions', nargs='+')
    arguments = arguments.parse_args()
    worker = python3_gearman.GearmanWorker([f'127.0.0.1:{arguments.port}'])
    worker.set_client_id('gearman-worker')
    for function in arguments.functions:
        worker.register_task(function, do)
    say(ready=True)
    worker.work()


def do(worker, job):
    took(job.task, job.unique, job.data)
    function = to_text(job.task)
    if function == 'echo':
        return job.data
    if function == 'reverse':
        return job.data[::-1]
    if function == 'steps':
        worker.send_job_data(job, 'one')
        worker.send_job_warning(job, 'careful')
        worker.send_job_status(job, 1, 2)
        worker.send_job_data(job, 'two')
        return 'done'
    if function == 'hold':
        worker.send_job_status(job, 1, 4)
        wait_to_go_on()
        return job.data
    # When a function raises something, the library says that the job failed, and nothing of what was raised. Sending the exception by hand
    # is what its users do, and then it sends the failure, or a result, as well.
    if function == 'raise':
        worker.send_job_exception(job, job.data)
    raise RuntimeError('this one fails')


main()
