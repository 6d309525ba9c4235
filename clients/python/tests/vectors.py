"""Plays the golden vectors: a server that expects each request and gives each reply, and the client in between.

    vectors.py FILE
"""

import json
import socket
import sys
import threading

import geartrain
from geartrain import Client

vectors = json.load(open(sys.argv[1], encoding="utf-8"))
requests = []


def serve(listener):
    connection = listener.accept()[0].makefile("rwb")
    for vector in vectors:
        words = []
        for _ in range(int(connection.readline()[1:])):
            length = int(connection.readline()[1:])
            words.append(connection.read(length + 2)[:-2].decode())
        requests.append(words)
        reply = json.dumps(vector["reply"], ensure_ascii=False).encode()
        connection.write(b"$%d\r\n%s\r\n" % (len(reply), reply))
        connection.flush()


def outcome(client, vector):
    try:
        value = getattr(client, vector["method"])(*vector["arguments"], **vector.get("options", {}))
    except geartrain.GeartrainError as error:
        name = type(error).__name__
        return {"raises": {"error": name, "code": error.code, "message": str(error), "help": error.help}}
    except geartrain.JobFailed as error:
        return {"raises": {"error": "JobFailed", "group": error.group, "message": error.message}}
    return {"returns": vars(value) if isinstance(value, geartrain.Result) else value}


listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=serve, args=(listener,), daemon=True).start()
client = Client(f"redis://127.0.0.1:{listener.getsockname()[1]}/?prefix=shop")
for vector in vectors:
    found = outcome(client, vector)
    expected = {key: vector[key] for key in ("returns", "raises") if key in vector}
    assert found == expected, f"{vector['method']} {vector['arguments']}: {found}, not {expected}"
    words = requests[-1]
    assert words[:4] == ["FCALL", "geartrain_json", "1", "shop"], words
    assert json.loads(words[4]) == vector["request"], f"{words[4]}, not {vector['request']}"
print(len(vectors))
