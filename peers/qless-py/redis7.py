"""Lets the client's own script run on Redis 7, which did not exist yet when it was written.

The script adds a function to Lua's global `table`. Since 7.0 globals are read-only, so the name is given to a local table
first that has everything of the global one behind it. A geartrain server is sent the same script, and does not run it.
"""

import qless

LOCAL_TABLE = b'local table = setmetatable({}, {__index = table})\n'


def connect(port, name):
    """A client as any program would make it, for a worker of this name."""
    client = qless.Client(f'redis://127.0.0.1:{port}', hostname=name)
    client._lua = client.redis.register_script(LOCAL_TABLE + client._lua.script)
    return client
