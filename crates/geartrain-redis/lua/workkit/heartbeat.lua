-- Extends a lease. KEYS: inflight, owner   ARGV: attempt, deadline
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 then return 0 end
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
return 1
