"""Enqueues tasks through Django's API, lets workers run them, and reads the results back through Django's API."""

import asyncio
import os
import subprocess
import sys
import time
from datetime import timedelta

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
django.setup()

from django.utils import timezone  # noqa: E402 (Django must be set up)
from geartrain import Client  # noqa: E402
from geartrain.django.backend import TaskResultDoesNotExist, TaskResultStatus, tasks  # noqa: E402
from shop.tasks import add, divide, greet, later, second_time, strange  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
WAYS = [[sys.executable, "manage.py", "geartrain_worker"], [sys.executable, "-m", "geartrain.django"]]


def run_worker(way, *arguments):
    subprocess.run([*WAYS[way], "--drain", *arguments], cwd=HERE, check=True, timeout=120,
                   env={**os.environ, "PYTHONPATH": os.pathsep.join([HERE, os.environ["PYTHONPATH"]])})


sum_of = add.enqueue(1, 2, note="first")
assert sum_of.status == TaskResultStatus.READY and sum_of.enqueued_at
assert add.get_result(sum_of.id).status == TaskResultStatus.READY
greeting = greet.enqueue("Ann")
bad = divide.enqueue(7)
asynchronous = later.enqueue("text")
deferred = add.using(run_after=timezone.now() + timedelta(days=1)).enqueue(3, 4)
run_worker(0, "--concurrency", "2", "--name", "w1")

sum_of.refresh()
assert sum_of.status == TaskResultStatus.SUCCESSFUL and sum_of.return_value == {"sum": 3}, sum_of
assert sum_of.args == [1, 2] and sum_of.kwargs == {"note": "first"} and sum_of.worker_ids == ["w1"], sum_of
assert sum_of.is_finished and sum_of.started_at and sum_of.finished_at and sum_of.attempts == 1
greeting.refresh()
assert greeting.return_value == "Hello Ann, attempt 1" and greeting.task.priority == 5, greeting
assert tasks.default_task_backend.get_result(asynchronous.id).return_value == "text"

bad.refresh()
assert bad.status == TaskResultStatus.FAILED, bad
(error,) = bad.errors
assert error.exception_class is ZeroDivisionError and "return number / 0" in error.traceback, error
try:
    bad.return_value
    raise AssertionError("a failed task has no return value")
except ValueError:
    pass

found = add.get_result(deferred.id)
assert found.status == TaskResultStatus.READY and not found.started_at
assert abs(found.task.run_after - deferred.task.run_after) < timedelta(seconds=1)

# A deferred task runs when it is due.
deferred_until = timezone.now() + timedelta(seconds=0.5)
soon = add.using(run_after=deferred_until).enqueue(5, 6)
until = time.monotonic() + 60
while not soon.is_finished:
    assert time.monotonic() < until, soon
    run_worker(0, "default")
    soon.refresh()
assert soon.return_value == {"sum": 11} and soon.finished_at > deferred_until, soon

# Higher priorities run first; a worker leaves the queues alone that it was not given.
ordered = [add.using(priority=priority).enqueue(0, priority) for priority in (-5, 0, 50)]
other = greet.enqueue("Eve")
run_worker(0, "default", "--concurrency", "1")
for result in [*ordered, other]:
    result.refresh()
assert [result.return_value["sum"] for result in sorted(ordered, key=lambda result: result.finished_at)] == [50, 0, -5]
assert other.status == TaskResultStatus.READY and other.task.queue_name == "mail", other


async def in_async_code():
    result = await add.aenqueue(20, 22)
    await asyncio.to_thread(run_worker, 0)
    await result.arefresh()
    assert (await add.aget_result(result.id)).return_value == result.return_value == {"sum": 42}, result


asyncio.run(in_async_code())

# A value that is no JSON is an error of the task, and arguments that are none are refused.
no_json = strange.enqueue()
run_worker(0)
no_json.refresh()
assert no_json.status == TaskResultStatus.FAILED and no_json.errors[0].exception_class is TypeError, no_json
try:
    add.enqueue(object(), 1)
    raise AssertionError("an object is no JSON")
except TypeError:
    pass
try:
    add.using(queue_name="nowhere").enqueue(1, 2)
    raise AssertionError("the queue is not one of QUEUES")
except Exception as error:
    assert type(error).__name__.startswith("InvalidTask"), error

retried = second_time.enqueue()
run_worker(1, "--backend", "patient", "--name", "w2")
retried.refresh()
assert retried.status == TaskResultStatus.SUCCESSFUL and retried.return_value is None, retried
assert retried.attempts == 2 and retried.errors[0].exception_class is ConnectionError, retried

# Unknown ids, and jobs that are no tasks.
with Client(os.environ["QUEUE_URL"]) as client:
    foreign = [client.put("elsewhere", klass, {}) for klass in ("welcome", "os.path.join")]
for unknown in ["nothing", "a" * 64, *foreign]:
    try:
        tasks.default_task_backend.get_result(unknown)
        raise AssertionError(unknown)
    except TaskResultDoesNotExist:
        pass
print("all is well")
