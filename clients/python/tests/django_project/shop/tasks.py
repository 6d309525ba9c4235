"""Tasks of the shop."""

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

order = []


@task
def add(one, other, note=""):
    order.append(note)
    return {"sum": one + other}


@task(priority=5, queue_name="mail", takes_context=True)
def greet(context, name):
    return f"Hello {name}, attempt {context.attempt}"


@task(backend="patient", queue_name="patient", takes_context=True)
def second_time(context):
    if context.attempt < 2:
        raise ConnectionError("not yet")
    return None


@task
async def later(text):
    return text


@task
def strange():
    return {1, 2}  # no JSON


@task
def divide(number):
    return number / 0
