"""A small project: one application with tasks."""

import os

SECRET_KEY = "only for tests"
USE_TZ = True
INSTALLED_APPS = ["geartrain.django", "shop"]
DATABASES = {}
TASKS = {
    "default": {
        "BACKEND": "geartrain.django.GeartrainBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"url": os.environ["QUEUE_URL"]},
    },
    "patient": {
        "BACKEND": "geartrain.django.GeartrainBackend",
        "QUEUES": ["patient"],
        "OPTIONS": {"url": os.environ["QUEUE_URL"], "retries": 1, "backoff": "0"},
    },
}
