"""`python -m geartrain.django`: the worker without a `manage.py`; DJANGO_SETTINGS_MODULE names the settings."""

import sys

import django
from django.core.management import call_command

django.setup()
call_command("geartrain_worker", *sys.argv[1:])
