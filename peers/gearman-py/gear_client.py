#!/usr/bin/env python3
"""A client made with `gear`, which does what is asked for on its standard input.

    gear_client.py --port PORT

What can be asked for, and what it says, is told in README.md.
"""

import argparse
import queue

import gear
from gear import constants

from lines import requests, say, to_bytes, to_text

PRECEDENCES = {'high': gear.PRECEDENCE_HIGH, 'normal': gear.PRECEDENCE_NORMAL, 'low': gear.PRECEDENCE_LOW}
WAIT_SECONDS_MAX = 30


class Job(gear.Job):
    """A job, and all that is heard of it."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.heard = {'data': [], 'warnings': [], 'progress': []}
        self.ended = queue.Queue()


class Client(gear.Client):
    """Hears of jobs on a thread of the library's."""

    def __init__(self):
        super().__init__('gear-client')
        self.statuses = queue.Queue()

    def handleWorkData(self, packet):
        packet.getJob().heard['data'].append(to_text(packet.getArgument(1, True)))
        super().handleWorkData(packet)

    def handleWorkWarning(self, packet):
        packet.getJob().heard['warnings'].append(to_text(packet.getArgument(1, True)))
        super().handleWorkWarning(packet)

    def handleWorkStatus(self, packet):
        job = packet.getJob()
        super().handleWorkStatus(packet)
        job.heard['progress'].append([int(job.numerator), int(job.denominator)])

    def handleWorkComplete(self, packet):
        packet.getJob().ended.put(('complete', to_text(packet.getArgument(1, True))))
        super().handleWorkComplete(packet)

    def handleWorkFail(self, packet):
        packet.getJob().ended.put(('fail', ''))
        super().handleWorkFail(packet)

    def handleWorkException(self, packet):
        packet.getJob().ended.put(('exception', to_text(packet.getArgument(1, True))))
        super().handleWorkException(packet)

    def handleStatusRes(self, packet):
        # What the library keeps of it goes to a job that it knows, and it only knows those that it waits for.
        self.statuses.put([int(packet.getArgument(place)) for place in (1, 2, 3)] + [int(packet.getArgument(4, True))])


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument('--port', type=int, required=True)
    arguments = arguments.parse_args()
    client = Client()
    client.addServer('127.0.0.1', arguments.port)
    client.waitForServer(WAIT_SECONDS_MAX)
    for request in requests():
        obey(client, request)
    client.shutdown()


def obey(client, request):
    if 'submit' in request:
        submit(client, request)
    elif 'status' in request:
        handle = to_bytes(request['status'])
        client.getConnection().sendPacket(gear.Packet(constants.REQ, constants.GET_STATUS, handle))
        known, running, numerator, denominator = client.statuses.get(timeout=WAIT_SECONDS_MAX)
        say(known=bool(known), running=bool(running), progress=[numerator, denominator])
    elif 'option' in request:
        say(option=client.setOption(request['option'], WAIT_SECONDS_MAX))
    else:
        administer(client, request['admin'])


def submit(client, request):
    job = Job(request['submit'], to_bytes(request['data']), to_bytes(request.get('unique', '')) or None)
    is_background = request.get('background', False)
    try:
        client.submitJob(job, is_background, PRECEDENCES[request.get('priority', 'normal')], WAIT_SECONDS_MAX)
    except gear.GearmanError as error:
        return say(refused=type(error).__name__)
    say(created=to_text(job.handle))
    if not is_background:
        how, result = job.ended.get(timeout=WAIT_SECONDS_MAX)
        say(ended=how, result=result, **job.heard)


def administer(client, words):
    what, *rest = words.split(' ')
    asked = {
        'status': gear.StatusAdminRequest,
        'workers': gear.WorkersAdminRequest,
        'version': gear.VersionAdminRequest,
        'show-jobs': gear.ShowJobsAdminRequest,
        'show-unique-jobs': gear.ShowUniqueJobsAdminRequest,
        'cancel-job': gear.CancelJobAdminRequest,
    }[what](*map(to_bytes, rest))
    client.getConnection().sendAdminRequest(asked, WAIT_SECONDS_MAX)
    say(admin=to_text(asked.response))


main()
