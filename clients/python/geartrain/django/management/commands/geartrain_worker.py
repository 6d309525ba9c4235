"""Runs the tasks that were enqueued with a backend."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...backend import GeartrainBackend, tasks


class Command(BaseCommand):
    help = "Runs tasks until SIGTERM, which lets running ones finish or hands them back."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("queues", nargs="*", help="queues; by default all of the backend")
        parser.add_argument("--backend", default="default", help="which backend of TASKS")
        parser.add_argument("--concurrency", type=int, default=1, help="how many tasks at a time, each on a thread")
        parser.add_argument("--grace", type=float, default=30.0, help="seconds that running tasks have to finish")
        parser.add_argument("--name", help="the worker's name; by default the host and the process")
        parser.add_argument("--drain", action="store_true", help="end when no task is ready")

    def handle(self, *args: Any, **options: Any) -> None:
        backend = tasks.task_backends[options["backend"]]
        if not isinstance(backend, GeartrainBackend):
            raise CommandError(f"TASKS[{options['backend']!r}] is not a geartrain.django.GeartrainBackend")
        worker = backend.worker(options["queues"] or None, concurrency=options["concurrency"], grace=options["grace"],
                                name=options["name"])
        worker.run(drain=options["drain"])
