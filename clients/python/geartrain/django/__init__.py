"""A backend for Django's tasks, whose tasks are jobs of geartrain, and the command that runs them.

    TASKS = {"default": {"BACKEND": "geartrain.django.GeartrainBackend", "OPTIONS": {"url": "redis://127.0.0.1:7411"}}}
    INSTALLED_APPS = [..., "geartrain.django"]

    python manage.py geartrain_worker
"""

from .backend import GeartrainBackend

__all__ = ["GeartrainBackend"]
