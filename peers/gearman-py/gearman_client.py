#!/usr/bin/env python3
"""A client made with `python3_gearman`, which does what is asked for on its standard input.

    gearman_client.py --port PORT

What can be asked for, and what it says, is told in README.md.
"""

import argparse

import python3_gearman
from python3_gearman import errors

from lines import requests, say, to_text

PRIORITIES = {
    'high': python3_gearman.PRIORITY_HIGH, 'normal': python3_gearman.PRIORITY_NONE, 'low': python3_gearman.PRIORITY_LOW
}
WAIT_SECONDS_MAX = 30


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument('--port', type=int, required=True)
    arguments = arguments.parse_args()
    host = f'127.0.0.1:{arguments.port}'
    client, administrator = python3_gearman.GearmanClient([host]), python3_gearman.GearmanAdminClient([host])
    submitted = {}
    for request in requests():
        if 'submit' in request:
            submit(client, request, submitted)
        elif 'status' in request:
            # It can only ask for what it submitted itself.
            status = client.get_job_status(submitted[request['status']], WAIT_SECONDS_MAX).status
            say(known=status['known'], running=status['running'],
                progress=[status['numerator'], status['denominator']])
        elif 'ping' in request:
            # It sends a word of its own.
            administrator.ping_server()
            say(pong=request['ping'])
        else:
            administer(administrator, request['admin'])


def submit(client, request, submitted):
    try:
        job = client.submit_job(
            request['submit'], request['data'], unique=request.get('unique'),
            priority=PRIORITIES[request.get('priority', 'normal')], background=request.get('background', False),
            wait_until_complete=False, poll_timeout=WAIT_SECONDS_MAX)
    except errors.GearmanError as error:
        return say(refused=type(error).__name__)
    handle = to_text(job.job.handle)
    submitted[handle] = job
    say(created=handle)
    if request.get('background', False):
        return
    [job] = client.wait_until_jobs_completed([job], poll_timeout=WAIT_SECONDS_MAX)
    progress = [[job.status['numerator'], job.status['denominator']]] if job.status.get('denominator') else []
    heard = {
        'data': [to_text(data) for data in job.data_updates],
        'warnings': [to_text(warning) for warning in job.warning_updates],
        'progress': progress,
    }
    if job.exception is not None:
        say(ended='exception', result=to_text(job.exception), **heard)
    elif job.state == python3_gearman.JOB_COMPLETE:
        say(ended='complete', result=to_text(job.result), **heard)
    elif job.state == python3_gearman.JOB_FAILED:
        say(ended='fail', result='', **heard)
    else:
        say(ended=None, state=str(job.state), **heard)


def administer(administrator, words):
    what, *rest = words.split(' ')
    if what == 'maxqueue':
        answer = administrator.send_maxqueue(rest[0], int(rest[1]))
    elif what == 'shutdown':
        answer = administrator.send_shutdown()
    else:
        answer = {
            'status': administrator.get_status,
            'workers': administrator.get_workers,
            'version': administrator.get_version,
        }[what]()
    say(admin=answer)


main()
