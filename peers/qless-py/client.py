#!/usr/bin/env python3
"""Does everything that a Qless program can, with the real client, and prints what it sees.

    client.py --port PORT       an empty Redis, or a geartrain server that was never used

What it prints is in client.expected, whatever answers at the port. It looks neither at what the revision of Qless that this client
carries does unlike the last one (texts of errors, what `tag` replies, whether exhausted retries are counted), nor at the order of
what happened at the same moment, which Qless leaves to the jids.
"""

import argparse
import queue
import sys

import qless
import qless.job
import qless.queue

import jobs
from observe import Clock, document, history_entry, jids, refused, see, since_start
from redis7 import connect


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument('--port', type=int, required=True)
    port = arguments.parse_args().port
    one, two = connect(port, 'one'), connect(port, 'two')
    if one.queues.counts:
        sys.exit(f'client.py: there are queues at port {port}, and it has to be an empty one')
    clock = Clock(qless, qless.job, qless.queue)
    for scene in (config, put_and_pop, tags, multiget, scheduled, depends, advance, fail_and_unfail, retry, move,
                  lock_lost, timed_out, cancel, recurring, tracked, messages, keys, pause, workers, stats, queues, refusals):
        clock.forward(1)
        scene(clock, one, two)


def config(clock, one, two):
    see('config: all, untouched', one.config.all)
    see('config: a default', one.config['heartbeat'])
    see('config: unknown', one.config.get('no-such-option'))
    one.config['heartbeat'] = 30
    see('config: set', one.config['heartbeat'])
    see('config: all, one set', one.config.all)
    del one.config['heartbeat']
    see('config: unset', one.config['heartbeat'])
    mine = one.queues['config']
    see('config: heartbeat of a queue', mine.heartbeat)
    mine.heartbeat = 90
    see('config: heartbeat of a queue, set', mine.heartbeat)
    mine.put('jobs.Any', {}, jid='config-1')
    see('config: it counts', since_start(mine.pop().expires_at) - since_start(clock.now))
    one.jobs['config-1'].complete()


def put_and_pop(clock, one, two):
    letters = one.queues['letters']
    see('put: jid', letters.put('jobs.Any', {'to': 'Ada', 'list': []}, jid='put-low', priority=-1))
    clock.forward(1)
    letters.put('jobs.Any', ['first'], jid='put-1')
    clock.forward(1)
    letters.put('jobs.Any', {'ä/"': '\n\x7f'}, jid='put-2', retries=2)
    clock.forward(1)
    letters.put('jobs.Any', {}, jid='put-high', priority=10, tags=['post', 'rush'])
    see('put: length', len(letters))
    see('put: counts', letters.counts)
    see('peek: by priority, then by time', jids(letters.peek(10)))
    see('peek: one', letters.peek().jid)
    one.jobs['put-2'].priority = 5
    see('priority: it overtakes', jids(letters.peek(10)))
    clock.forward(1)
    high = letters.pop()
    see('pop: highest first', document(high))
    clock.forward(1)
    see('pop: several, with the same order', jids(two.queues['letters'].pop(10)))
    see('pop: none left', letters.pop())
    see('pop: none left of several', letters.pop(5))
    see('pop: who holds it', one.jobs['put-1'].worker_name)
    see('put: data as it was put', one.jobs['put-2'].data)
    see('pop: counts', letters.counts)
    see('pop: running', sorted(letters.jobs.running()))
    clock.forward(30)
    high['seen'] = True
    see('heartbeat: until when', since_start(high.heartbeat()))
    see('heartbeat: data goes with it', one.jobs['put-high'].data)
    see('heartbeat: time left', one.jobs['put-high'].ttl)
    clock.forward(5)
    high['seen'] = 'twice'
    see('complete: state', high.complete())
    see('complete: document', document(one.jobs['put-high']))
    see('complete: twice', refused(high.complete))
    clock.forward(1)
    for jid in ('put-2', 'put-1', 'put-low'):
        clock.forward(1)
        two.jobs[jid].complete()
    see('complete: newest first', one.jobs.complete(0, 3))
    see('complete: a page of them', one.jobs.complete(1, 2))
    clock.forward(1)
    letters.put('jobs.Any', {'again': 1}, jid='put-1')
    see('put: again', document(one.jobs['put-1']))
    see('put: no longer complete', one.jobs.complete(0, 3))
    one('log', 'put-1', 'noted', '{"by":"somebody"}')
    see('log: in the history', history_entry(one.jobs['put-1'].history[-1]))


def tags(clock, one, two):
    tagged = one.queues['tagged']
    for number in (1, 2, 3):
        clock.forward(1)
        tagged.put('jobs.Any', {}, jid=f'tag-{number}', tags=['all', f'only-{number}'])
    see('tags: of all', one.jobs.tagged('all'))
    see('tags: of one', one.jobs.tagged('only-2'))
    see('tags: of none', one.jobs.tagged('nobody'))
    clock.forward(1)
    one.jobs['tag-3'].tag('late', 'only-1')
    see('tags: added', one.jobs['tag-3'].tags)
    see('tags: added, found', one.jobs.tagged('only-1'))
    one.jobs['tag-1'].untag('all')
    see('tags: removed', one.jobs['tag-1'].tags)
    see('tags: removed, not found', one.jobs.tagged('all'))
    see('tags: the most used', one.tags())
    one.jobs['tag-2'].cancel()
    see('tags: gone with the job', one.jobs.tagged('only-2'))


def multiget(clock, one, two):
    see('multiget: without the unknown', jids(one.jobs.get('tag-3', 'nobody', 'tag-1')))
    see('multiget: nothing', jids(one.jobs.get('nobody')))
    see('get: unknown', one.jobs['nobody'])


def scheduled(clock, one, two):
    later = one.queues['later']
    later.put('jobs.Any', {}, jid='later-20', delay=20)
    later.put('jobs.Any', {}, jid='later-10', delay=10)
    see('delay: document', document(one.jobs['later-20']))
    see('delay: the earliest first', later.jobs.scheduled())
    see('delay: not yet', later.pop())
    see('delay: length', len(later))
    clock.forward(10)
    see('delay: due', later.pop().jid)
    see('delay: counts', later.counts)
    clock.forward(10)
    see('delay: counts move what is due', later.counts)
    see('delay: state then', one.jobs['later-20'].state)


def depends(clock, one, two):
    stages = one.queues['stages']
    stages.put('jobs.Any', {}, jid='base')
    clock.forward(1)
    stages.put('jobs.Any', {}, jid='middle', depends=['base'])
    clock.forward(1)
    stages.put('jobs.Any', {}, jid='top', depends=['middle', 'base', 'nobody'])
    see('depends: document', document(one.jobs['top']))
    see('depends: the other side', sorted(one.jobs['base'].dependents))
    see('depends: listed', stages.jobs.depends())
    see('depends: not counted in the length', len(stages))
    see('depends: on cannot go alone', refused(one.jobs['base'].cancel))
    clock.forward(1)
    base = stages.pop()
    see('depends: only this one', [base.jid, stages.pop()])
    base.complete()
    see('depends: released', [one.jobs['middle'].state, one.jobs['top'].state])
    see('depends: left', one.jobs['top'].dependencies)
    stages.put('jobs.Any', {}, jid='more')
    one.jobs['top'].depend('more')
    see('depends: one more', sorted(one.jobs['top'].dependencies))
    see('depends: too late', refused(lambda: one.jobs['more'].depend('middle')))
    one.jobs['top'].undepend('middle')
    see('depends: one less', [one.jobs['top'].state, one.jobs['top'].dependencies])
    clock.forward(1)
    one.jobs['top'].undepend(all=True)
    see('depends: none', [one.jobs['top'].state, one.jobs['top'].dependencies])
    see('depends: counts', stages.counts)


def advance(clock, one, two):
    first, second = one.queues['first'], one.queues['second']
    for number in (1, 2, 3):
        first.put('jobs.Any', {'number': number}, jid=f'advance-{number}')
        clock.forward(1)
    at_once, delayed, blocked = first.pop(3)
    at_once['from'] = 'first'
    see('advance: at once', at_once.complete('second'))
    see('advance: document', document(one.jobs['advance-1']))
    see('advance: delayed', delayed.complete('second', delay=60))
    see('advance: blocked', blocked.complete('second', depends=['advance-1']))
    see('advance: counts', [first.counts, second.counts])
    clock.forward(1)
    second.pop().complete()
    see('advance: no longer blocked', second.pop().jid)
    clock.forward(60)
    see('advance: no longer delayed', second.pop().jid)


def fail_and_unfail(clock, one, two):
    risky = one.queues['risky']
    for number in (1, 2, 3):
        risky.put('jobs.Any', {}, jid=f'fail-{number}')
        clock.forward(1)
    first, second, third = risky.pop(3)
    first['tried'] = True
    see('fail: jid', first.fail('no-paper', 'The tray is empty'))
    clock.forward(1)
    second.fail('no-paper', 'Still empty')
    third.fail('no-ink', 'Dry')
    see('fail: document', document(one.jobs['fail-1']))
    see('fail: groups', one.jobs.failed())
    group = one.jobs.failed('no-paper')
    see('fail: a group, newest first', [group['total'], jids(group['jobs'])])
    see('fail: twice', refused(lambda: first.fail('no-paper', 'Once more')))
    see('fail: counts', risky.counts)
    clock.forward(1)
    see('unfail: how many', one.unfail('no-paper', 'risky', 1))
    see('unfail: the oldest', document(one.jobs['fail-1']))
    see('unfail: groups', one.jobs.failed())
    clock.forward(1)
    one.jobs['fail-2'].move('elsewhere')
    see('fail: moved out of it', [document(one.jobs['fail-2']), one.jobs.failed()])
    one.jobs['fail-3'].cancel()
    see('fail: cancelled out of it', one.jobs.failed())


def retry(clock, one, two):
    again = one.queues['again']
    again.put('jobs.Any', {}, jid='retry-1', retries=2)
    clock.forward(1)
    see('retry: left', again.pop().retry())
    see('retry: at once', [one.jobs['retry-1'].state, one.jobs['retry-1'].retries_left])
    clock.forward(1)
    see('retry: left, later', again.pop().retry(30, 'busy', 'Come back later'))
    see('retry: document', [one.jobs['retry-1'].state, one.jobs['retry-1'].failure['group']])
    see('retry: not yet', again.pop())
    clock.forward(30)
    last = again.pop()
    see('retry: none left', last.retry())
    see('retry: failed for good', [one.jobs['retry-1'].state, one.jobs['retry-1'].retries_left, one.jobs.failed()])
    see('retry: not running', refused(last.retry))
    # Not cancelled: the older revision does not count this failure, and then stumbles over the missing count.
    see('retry: unfailed', one.unfail('failed-retries-again', 'again'))


def move(clock, one, two):
    one.queues['from'].put('jobs.Any', {'kept': True}, jid='move-1', priority=3, tags=['moves'])
    clock.forward(1)
    held = one.queues['from'].pop()
    clock.forward(1)
    two.jobs['move-1'].move('to', delay=5)
    see('move: document', document(one.jobs['move-1']))
    see('move: the holder lost it', refused(held.heartbeat))
    see('move: counts', [one.queues['from'].counts, one.queues['to'].counts])
    one.jobs['move-1'].cancel()


def lock_lost(clock, one, two):
    mine, theirs = one.queues['locks'], two.queues['locks']
    mine.put('jobs.Any', {}, jid='lock-1')
    clock.forward(1)
    held = mine.pop()
    clock.forward(60)
    see('lock: expired', [mine.jobs.stalled(), one.workers['one'], mine.counts])
    see('lock: expired, and the holder is warned', theirs.pop())
    see('lock: in grace', document(one.jobs['lock-1']))
    see('lock: not its job any more', one.workers['one'])
    clock.forward(10)
    taken = theirs.pop()
    see('lock: taken over', document(taken))
    see('lock: heartbeat of the one before', refused(held.heartbeat))
    see('lock: complete by the one before', refused(held.complete))
    clock.forward(1)
    see('lock: heartbeat of the new one', since_start(taken.heartbeat()))
    see('lock: complete by the new one', taken.complete())
    see('lock: the warning is in the statistics', mine.stats()['retries'])
    clock.forward(1)
    mine.put('jobs.Any', {}, jid='lock-2')
    held = mine.pop()
    clock.forward(61)
    see('lock: expired again', theirs.pop())
    see('lock: a heartbeat in grace keeps it', since_start(held.heartbeat()) - since_start(clock.now))
    see('lock: and it can be completed', held.complete())


def timed_out(clock, one, two):
    slow = one.queues['slow']
    slow.put('jobs.Any', {}, jid='slow-1', priority=-5)
    clock.forward(1)
    held = slow.pop()
    slow.put('jobs.Any', {}, jid='slow-2', priority=5)
    clock.forward(1)
    two.jobs['slow-1'].timeout()
    see('timeout: document', document(one.jobs['slow-1']))
    see('timeout: the holder lost it', refused(held.heartbeat))
    see('timeout: before all others', two.queues['slow'].pop().jid)
    see('timeout: not running', refused(one.jobs['slow-2'].timeout))


def cancel(clock, one, two):
    doomed = one.queues['doomed']
    doomed.put('jobs.Any', {}, jid='cancel-1')
    doomed.put('jobs.Any', {}, jid='cancel-2', depends=['cancel-1'])
    doomed.put('jobs.Any', {}, jid='cancel-3')
    see('cancel: with what depends on it', one('cancel', 'cancel-1', 'cancel-2'))
    see('cancel: gone', [one.jobs['cancel-1'], one.jobs['cancel-2']])
    clock.forward(1)
    held = doomed.pop()
    two.jobs['cancel-3'].cancel()
    see('cancel: under its holder', refused(held.heartbeat))
    see('cancel: and cannot be completed', refused(held.complete))
    see('cancel: counts', doomed.counts)


def recurring(clock, one, two):
    hourly = one.queues['hourly']
    first = clock.now
    see('recur: jid', hourly.recur('jobs.Any', {'n': 1}, 60, offset=10, jid='recur-1', priority=2, tags=['tick']))
    template = one.jobs['recur-1']
    see('recur: document', [type(template).__name__, template.jid, template.klass_name, template.queue_name,
                            template.priority, template.data, template.tags, template.interval, template.retries,
                            template.count])
    see('recur: when', template.next - first)
    see('recur: listed', hourly.jobs.recurring())
    see('recur: not yet', hourly.pop())
    clock.forward(10)
    child = hourly.pop()
    see('recur: a child', document(child))
    clock.forward(150)
    see('recur: those that were missed', jids(hourly.pop(10)))
    see('recur: when then', [one.jobs['recur-1'].next - first, one.jobs['recur-1'].count])
    template.interval = 30
    template.priority = 7
    template.data = {'n': 2}
    template.klass = jobs.Relay
    template.retries = 1
    template.tag('tock')
    template.untag('tick')
    changed = one.jobs['recur-1']
    see('recur: changed', [changed.interval, changed.priority, changed.data, changed.klass_name, changed.retries,
                           changed.tags, changed.next - first])
    template.move('daily')
    see('recur: moved', [hourly.jobs.recurring(), one.queues['daily'].jobs.recurring(), one.jobs['recur-1'].queue_name])
    clock.forward(30)
    see('recur: a child of the changed one', document(one.queues['daily'].pop()))
    see('recur: counts', one.queues['daily'].counts)
    template.cancel()
    see('recur: cancelled', [one.jobs['recur-1'], one.queues['daily'].jobs.recurring()])
    see('recur: its children stay', one.jobs['recur-1-1'].state)


def tracked(clock, one, two):
    heard = queue.Queue()
    events = one.events
    for name in ('canceled', 'completed', 'failed', 'popped', 'put', 'stalled', 'track', 'untrack'):
        events.on(name, lambda jid, name=name: heard.put([name, jid]))
    watched = one.queues['watched']
    watched.put('jobs.Any', {}, jid='knock')
    clock.forward(1)
    with events.thread():
        # The listener subscribes in its own time. Once it has heard anything, it hears everything.
        while heard.empty():
            one.track('knock')
            try:
                heard.put(heard.get(timeout=0.1))
            except queue.Empty:
                pass
        for jid in ('track-1', 'track-2', 'track-3', 'unwatched'):
            watched.put('jobs.Any', {}, jid=jid)
            clock.forward(1)
        for jid in ('track-1', 'track-2', 'track-3'):
            one.jobs[jid].track()
        see('track: shown', [one.jobs['track-1'].tracked, one.jobs['unwatched'].tracked])
        see('track: listed', [jid for jid in jids(one.jobs.tracked()['jobs']) if jid != 'knock'])
        see('track: first of the queue', watched.pop().jid)
        first, second, third = watched.pop(3)
        first.complete('watched')
        second.fail('seen', 'by everyone')
        clock.forward(1)
        second.move('watched')
        clock.forward(60)
        see('track: an expired lock', [job.jid for job in two.queues['watched'].pop(2)])
        one.jobs['track-1'].untrack()
        one.jobs['track-2'].cancel()
        one.jobs['track-3'].untrack()
        told = []
        while told[-1:] != [['untrack', 'track-3']]:
            told.append(heard.get(timeout=60))
    see('track: told', [event for event in told if event[1] != 'knock'])
    gone = one.jobs.tracked()
    see('track: gone', [jids(gone['jobs']), gone['expired']])


def messages(clock, one, two):
    """What is published, as text, to a subscriber of a worker's channel and of everything."""
    listener = one.redis.pubsub(ignore_subscribe_messages=False)
    listener.subscribe('ql:log', 'ql:w:one')
    for _ in ('ql:log', 'ql:w:one'):
        listener.get_message(timeout=60)
    talk = one.queues['talk']
    talk.put('jobs.Any', {}, jid='a/b "c"')
    clock.forward(1)
    held = talk.pop()
    clock.forward(1)
    held.complete('listen')
    clock.forward(1)
    held = one.queues['listen'].pop()
    held.fail('silence', 'not\na/word')
    one.unfail('silence', 'listen')
    clock.forward(1)
    one.queues['listen'].pop()
    clock.forward(60)
    two.queues['listen'].pop()
    one.jobs['a/b "c"'].cancel()
    one.config['talk'] = 'loud'
    del one.config['talk']
    talk.put('jobs.Any', {}, jid='talk-2')
    clock.forward(1)
    talk.pop().complete()
    told = []
    while not told or '"completed"' not in told[-1][1]:
        message = listener.get_message(timeout=60)
        told.append([message['channel'], message['data']])
    listener.close()
    see('messages: told', told)


def keys(clock, one, two):
    """What clients in other languages read from keys, also in a transaction, and a message that a client publishes."""
    mine = one.queues['keys']
    for number in range(3):
        mine.put('jobs.Any', {}, jid=f'keys-{number}')
    mine.put('jobs.Any', {}, jid='keys-later', delay=100)
    mine.put('jobs.Any', {}, jid='keys-blocked', depends=['keys-1'])
    held = mine.pop()
    pipeline = one.redis.pipeline()
    for part in ('locks', 'work', 'scheduled', 'depends', 'recur'):
        pipeline.zcard(f'ql:q:keys-{part}')
    see('keys: in a transaction', pipeline.execute())
    see('keys: one by one', one.redis.zcard('ql:q:keys-work'))
    see('keys: score', since_start(one.redis.zscore('ql:q:keys-scheduled', 'keys-later')) - since_start(clock.now))
    see('keys: no score', one.redis.zscore('ql:q:keys-scheduled', held.jid))
    see('keys: exist', bool(one.redis.exists('ql:q:keys-work')))
    see('keys: do not exist', bool(one.redis.exists('ql:q:keys-recur')))
    see('keys: type', one.redis.type('ql:j:keys-1'))
    listener = two.redis.pubsub(ignore_subscribe_messages=False)
    listener.subscribe('ql:w:two', 'keys-stop')
    for _ in ('ql:w:two', 'keys-stop'):
        listener.get_message(timeout=60)
    see('keys: receivers', one.redis.publish('keys-stop', 'disconnect'))
    message = listener.get_message(timeout=60)
    see('keys: received', [message['channel'], message['data']])
    listener.close()
    for jid in ('keys-blocked', 'keys-0', 'keys-1', 'keys-2', 'keys-later'):
        one.jobs[jid].cancel()


def pause(clock, one, two):
    halted = one.queues['halted']
    halted.put('jobs.Any', {}, jid='halted-1')
    halted.pause()
    see('pause: counts', halted.counts)
    see('pause: nothing is handed out', halted.pop())
    halted.unpause()
    see('pause: over', halted.pop().jid)


def workers(clock, one, two):
    # What the scenes before this one left behind is not looked at, but for these two.
    ours = one.queues['ours']
    for number in (1, 2, 3):
        ours.put('jobs.Any', {}, jid=f'ours-{number}')
        clock.forward(1)
    three, four = (connect(port_of(one), name) for name in ('three', 'four'))
    three.queues['ours'].pop(2)
    clock.forward(1)
    four.queues['ours'].pop()
    named = [worker for worker in one.workers.counts if worker['name'] in ('three', 'four')]
    see('workers: last seen first', named)
    see('workers: the jobs of one', sorted(one.workers['three']['jobs']))
    clock.forward(60)
    see('workers: stalled', [sorted(one.workers['three']['stalled']), one.workers['four']])
    see('workers: unknown', one.workers['nobody'])
    one('worker.deregister', 'three')
    see('workers: forgotten', [worker['name'] for worker in one.workers.counts if worker['name'] in ('three', 'four')])


def port_of(client):
    return client.redis.connection_pool.connection_kwargs['port']


def stats(clock, one, two):
    measured = one.queues['measured']
    see('stats: of nothing', summary(measured.stats()))
    for number in (1, 2, 3, 4):
        measured.put('jobs.Any', {}, jid=f'stats-{number}')
        clock.forward(0.25)
    for number in (1, 2, 3, 4):
        clock.forward(1.5 * number)
        measured.pop()
    clock.forward(60)
    for number in (1, 2, 3):
        clock.forward(20)
        one.jobs[f'stats-{number}'].complete()
    one.jobs['stats-4'].fail('measured', 'nothing to see')
    see('stats: waits, runs and failures', summary(measured.stats()))
    see('stats: of a moment of that day', summary(measured.stats(clock.now)) == summary(measured.stats()))
    see('stats: of the day before', summary(measured.stats(clock.now - 86400)))
    one.jobs['stats-4'].cancel()
    see('stats: failed ones that are left', [measured.stats()[name] for name in ('failures', 'failed')])


def summary(figures):
    """Statistics with the histograms' zeros left out."""
    shown = {name: figures[name] for name in ('failed', 'failures', 'retries')}
    for name in ('wait', 'run'):
        part = dict(figures[name])
        histogram = part.pop('histogram')
        part['buckets'] = len(histogram)
        part['histogram'] = {str(index): count for index, count in enumerate(histogram) if count}
        shown[name] = part
    return shown


def queues(clock, one, two):
    see('queues: in the order in which they were first seen', [queue['name'] for queue in one.queues.counts])
    one('queue.forget', 'config', 'halted')
    see('queues: forgotten', [queue['name'] for queue in one.queues.counts if queue['name'] in ('config', 'halted')])
    see('queues: never seen', one.queues['nowhere'].counts)
    see('queues: length of one never seen', len(one.queues['nowhere']))


def refusals(clock, one, two):
    see('refused: an unknown command', refused(lambda: one('nonsense')))
    see('refused: no queue', refused(lambda: one('length')))
    see('refused: no number', refused(lambda: one('pop', 'letters', 'one', 'many')))
    see('refused: no JSON', refused(lambda: one('put', 'letters', 'bad-1', 'jobs.Any', '{', 0)))
    see('refused: nothing was put', one.jobs['bad-1'])
    see('unfail: an unknown group', refused(lambda: one.unfail('nobody', 'letters')))


main()
