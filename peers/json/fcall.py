"""Sends a document with a Redis library that knows nothing of geartrain, and prints the document of the reply.

    fcall.py PORT DOCUMENT
"""

import sys

import redis

port, document = sys.argv[1:]
print(redis.Redis(port=int(port), decode_responses=True).fcall('geartrain_json', 1, '', document))
