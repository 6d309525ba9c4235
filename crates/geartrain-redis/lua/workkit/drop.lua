-- Removes an entry without a job. KEYS: S:jobs, S:next, dead   ARGV: id, entry, reason
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 0 end
if redis.call('ZREM', KEYS[2], ARGV[2]) == 0 then return 0 end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
return 1
