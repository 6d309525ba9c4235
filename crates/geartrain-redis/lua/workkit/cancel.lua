-- Removes a job; a run in progress goes on. KEYS: S:jobs, S:next, retry, dead, moving   ARGV: id, entry
local removed = redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[2])
redis.call('HDEL', KEYS[3], ARGV[1])
return math.max(removed, redis.call('HDEL', KEYS[4], ARGV[1]), redis.call('HDEL', KEYS[5], ARGV[1]))
