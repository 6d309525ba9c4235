"""What the programs read and print: an object of JSON a line. Bytes are strings in which each character is a byte."""

import json
import sys

# Characters of a payload that are printed to show that it arrived.
SHOWN_BYTES_MAX = 100


def to_bytes(text):
    return text.encode('latin-1')


def to_text(data):
    # One of the libraries makes strings of some bytes by itself.
    return data if isinstance(data, str) else bytes(data).decode('latin-1')


def say(**what):
    print(json.dumps(what), flush=True)


def requests():
    """What is asked for, until the input ends."""
    for line in sys.stdin:
        yield json.loads(line)


def took(function, unique, payload):
    """Says that a worker has a job."""
    say(took=to_text(payload)[:SHOWN_BYTES_MAX], function=to_text(function), unique=to_text(unique or b''))


def wait_to_go_on():
    """Waits until a worker is told to finish what it holds."""
    sys.stdin.readline()
