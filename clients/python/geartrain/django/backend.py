"""Tasks as jobs: a queue of Django is a queue, the path of the function the klass, and the id of a result the jid."""

from __future__ import annotations

import json
import traceback
from datetime import datetime, timezone
from typing import Any, Optional

from django.db import close_old_connections
from django.utils.module_loading import import_string

from ..client import Client, new_jid
from ..errors import NoResult, NoSuchJob, Unfinished
from ..worker import Job, Retry, Worker

try:
    from django import tasks  # Django 6
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ImportError:  # the same for earlier versions of Django
    import django_tasks as tasks  # type: ignore[no-redef]
    from django_tasks.backends.base import BaseTaskBackend  # type: ignore[assignment]
    from django_tasks.base import (  # type: ignore[assignment]
        Task, TaskContext, TaskError, TaskResult, TaskResultStatus)
    from django_tasks.exceptions import TaskResultDoesNotExist  # type: ignore[assignment]
    from django_tasks.signals import task_enqueued, task_finished, task_started

STATUSES = {"complete": TaskResultStatus.SUCCESSFUL, "failed": TaskResultStatus.FAILED,
            "running": TaskResultStatus.RUNNING}
KEEP_RESULT = "25h"


def _time(seconds: Optional[float]) -> Optional[datetime]:
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)


def _path(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


class GeartrainBackend(BaseTaskBackend):
    """OPTIONS: `url`; `retries`, `backoff` and `timeout` of each job (no retries by default, as Django has none);
    `keep_result`, how long results are kept."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.client = Client(self.options.get("url"))
        self._put = {"retries": 0, "keep_result": KEEP_RESULT,
                     **{key: self.options[key] for key in ("retries", "backoff", "timeout", "keep_result")
                        if key in self.options}}

    def enqueue(self, task: Task[Any, Any], args: Any, kwargs: Any) -> TaskResult[Any, Any]:
        self.validate_task(task)
        result: TaskResult[Any, Any] = TaskResult(task=task, id=new_jid(), status=TaskResultStatus.READY,
                            enqueued_at=datetime.now(timezone.utc), started_at=None, finished_at=None,
                            last_attempted_at=None, args=list(args), kwargs=dict(kwargs), backend=self.alias, errors=[],
                            worker_ids=[])
        self.client.put(task.queue_name, task.module_path, {"args": result.args, "kwargs": result.kwargs},
                        jid=result.id, priority=task.priority,
                        at=task.run_after.timestamp() if task.run_after else None, **self._put)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any, Any]:
        try:
            job = self.client.get(result_id)
            task = import_string(job["klass"])
        except (NoSuchJob, ImportError) as error:
            raise TaskResultDoesNotExist(result_id) from error
        if not isinstance(task, Task):
            raise TaskResultDoesNotExist(result_id)
        queue = job["queue"] or next((entry["queue"] for entry in job["history"] if entry["what"] == "put"), None)
        task = task.using(priority=job["priority"], queue_name=queue, backend=self.alias, run_after=_time(job["due"]))
        popped = [entry for entry in job["history"] if entry["what"] == "popped"]
        failure = job["failure"] if job["state"] == "failed" else None
        result: TaskResult[Any, Any] = TaskResult(
            task=task, id=result_id, status=STATUSES.get(job["state"], TaskResultStatus.READY),
            enqueued_at=_time(job["history"][0]["when"]) if job["history"] else None,
            started_at=_time(popped[0]["when"]) if popped else None,
            last_attempted_at=_time(popped[-1]["when"]) if popped else None,
            finished_at=_time(failure["when"] if failure else job["completed"]),
            args=job["payload"]["args"], kwargs=job["payload"]["kwargs"], backend=self.alias,
            errors=self._errors(job, failure), worker_ids=[entry["worker"] for entry in popped])
        if result.status == TaskResultStatus.SUCCESSFUL:
            object.__setattr__(result, "_return_value", self._return_value(result_id))
        return result

    @staticmethod
    def _errors(job: dict[str, Any], failure: Optional[dict[str, Any]]) -> list[TaskError]:
        """Of each attempt that was retried, and of the last one."""
        ends = [entry for entry in job["history"] if entry["what"] == "attempt-ended" and entry["reason"] == "retried"]
        if failure and ends and ends[-1]["group"] == failure["group"]:
            ends.pop()  # the same one, cut short
        return [TaskError(exception_class_path=one["group"] or "builtins.Exception", traceback=one["message"] or "")
                for one in [*ends, *([failure] if failure else [])]]

    def _return_value(self, jid: str) -> Any:
        try:
            value = self.client.result(jid).value
            return value.get("return") if isinstance(value, dict) else None
        except (NoResult, NoSuchJob, Unfinished):
            return None  # not kept any more

    def worker(self, queues: Optional[list[str]] = None, **options: Any) -> Worker:
        """A worker that runs the tasks of these queues, or of all queues of this backend."""
        worker = Worker(queues or sorted(self.queues), self.options.get("url"), **options)
        worker.on()(self._run)
        return worker

    def _run(self, job: Job) -> dict[str, Any]:
        close_old_connections()
        result = self.get_result(job.jid)
        task_started.send(type(self), task_result=result)
        try:
            context: list[Any] = [TaskContext(task_result=result)] if result.task.takes_context else []
            value = result.task.call(*context, *result.args, **result.kwargs)
            json.dumps(value)  # what is no JSON is an error of the task
            object.__setattr__(result, "_return_value", value)
            self._finished(result, TaskResultStatus.SUCCESSFUL)
            return {"return": value}
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            result.errors.append(TaskError(exception_class_path=_path(type(error)), traceback=trace))
            self._finished(result, TaskResultStatus.FAILED)
            raise Retry(trace, group=_path(type(error))) from error
        finally:
            close_old_connections()

    def _finished(self, result: TaskResult[Any, Any], status: TaskResultStatus) -> None:
        object.__setattr__(result, "status", status)
        object.__setattr__(result, "finished_at", datetime.now(timezone.utc))
        task_finished.send(type(self), task_result=result)


__all__ = ["GeartrainBackend", "tasks"]
