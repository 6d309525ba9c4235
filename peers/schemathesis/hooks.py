"""What the schemas cannot say: texts in forms of our own, and requests that would wait or stream for long."""

import re

import schemathesis
from hypothesis import strategies as st

DURATIONS = ['0', '90', '1.5', '250ms', '90s', '1h30m', '1w2d', '5 minutes']
TIMES = ['2096-04-01', '2096-04-01T12:00:00Z', '2096-04-01T12:00:00.25+02:00', 'tomorrow', '7pm tomorrow', '3975000000']

schemathesis.openapi.format('duration-or-seconds', st.sampled_from(DURATIONS).filter(lambda text: text != '0'))
schemathesis.openapi.format('time-or-seconds', st.sampled_from(TIMES))
schemathesis.openapi.format('past-time-or-seconds', st.sampled_from(
    ['2026-04-01', '2026-04-01T12:00:00Z', 'yesterday', '2h', '1775000000']))
schemathesis.openapi.format('backoff', st.sampled_from(['30s', '10s..1h', '10sx3..1h+-0.2', '1.5', '1m30s+-1']))
schemathesis.openapi.format('rate', st.sampled_from(['10/s', '100/1m', '100/1m+20', '1/90']))
schemathesis.openapi.format('day-or-seconds', st.sampled_from(['2026-04-01', 'today', 'yesterday', '1775000000']))
schemathesis.openapi.format('recurrence', st.sampled_from(
    ['0 3 * * *', '*/5 * * * *', '0 0 12 * * MON-FRI', '@daily', 'every monday at 9:00', 'every 5 minutes']))
schemathesis.openapi.format('filter', st.sampled_from(
    ['queue=mail', 'klass=welcome state=failed', 'tag="a b"', 'age>2h attempts<3', 'group=smtp', 'worker=w1',
     'state=waiting args.user.id=42', 'state=stalled']))

# The form of an in-process store; any number is a place.
schemathesis.openapi.format('cursor', st.sampled_from(['row-0', 'row-7']))

# A wait of a request, in seconds. Long enough to be one.
WAIT = 0.05
# The fields of /v1/events that select events of a stream.
SELECTORS = {'event', 'jid', 'queue', 'worker', 'group'}


def shorten(document):
    """Shortens every wait that is valid, in an operation or a batch of them."""
    if isinstance(document, list):
        for item in document:
            shorten(item)
    elif isinstance(document, dict):
        for key, value in document.items():
            if key == 'wait' and is_long(value):
                document[key] = WAIT
            else:
                shorten(value)


def is_long(wait):
    if isinstance(wait, bool):
        return False
    if isinstance(wait, (int, float)):
        return WAIT < wait <= 3_155_760_000
    return isinstance(wait, str) and re.search('[1-9]', wait) is not None and (wait in DURATIONS or wait == '30s')


@schemathesis.hook
def before_call(context, case, kwargs):
    shorten(case.body)
    query = case.query
    if isinstance(query, dict):
        if is_long(number(query.get('wait'))):
            query['wait'] = str(WAIT)
        # A stream has selectors, and may begin now; a list has `count` and `wait`.
        if case.operation.path == '/v1/events' and (SELECTORS & query.keys() or 'after' not in query):
            case.headers = {**(case.headers or {}), 'Accept': 'text/event-stream'}
            for name in ('count', 'wait'):
                query.pop(name, None)


# Refusals of requests that fit their schemas: rules between fields, or about the present, which a schema cannot state.
BETWEEN_FIELDS = [
    'progress must be at most',
    '`none` removes all limits: give no other',
    'it is more than a hundred years ahead',
    'backlog must be 1 to 1000',
    'expires must be after',
    'is given twice',
    'is beyond the last event',
    # Of `status` with a unique key.
    '`queue` is missing',
    'give either `jid`, or `queue` and `unique`',
    'the filter compares payloads as JSON',
]


@schemathesis.hook
def filter_failure(context, failure, case, response):
    if response.status_code == 431:
        # Refused before it is a request: the limit of heads is no rule of a field.
        return False
    if type(failure).__name__ == 'AcceptedNegativeData':
        # The tester cannot know what violates a format of ours.
        return 'violates `format`' not in str(failure)
    is_rejection = type(failure).__name__ == 'RejectedPositiveData'
    return not (is_rejection and any(text in response.text for text in BETWEEN_FIELDS))


def number(text):
    try:
        return float(text)
    except (TypeError, ValueError):
        return text
