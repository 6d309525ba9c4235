"""Prints errors as this client raises them, one JSON document per line.

    errors.py codes CODE…           the error of a document with each code
    errors.py refusals URL FILE     the refusals of the operations in a file, one after the other; null for a reply
"""

import json
import sys

from geartrain import Client, GeartrainError
from geartrain.errors import from_document


def show(error):
    assert isinstance(error, GeartrainError) and str(error) == error.message
    print(json.dumps({"class": type(error).__name__, "code": error.code, "message": error.message, "help": error.help}))


if sys.argv[1] == "codes":
    for code in sys.argv[2:]:
        show(from_document({"code": code, "message": "what is wrong", "help": "what to do"}))
else:
    with Client(sys.argv[2]) as client, open(sys.argv[3], encoding="utf-8") as file:
        for operation in json.load(file):
            ((name, fields),) = operation.items()
            try:
                client.ask(name, **fields)
                print("null")
            except GeartrainError as error:
                show(error)
