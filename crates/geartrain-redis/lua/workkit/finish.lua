-- Ends an attempt for good. A job without another run leaves the schedule, unless it was queued again.
-- KEYS: S:jobs, S:next, inflight, owner, retry, dead
-- ARGV: id, entry, attempt, '1' if it was the last run, reason or ''
if redis.call('HDEL', KEYS[4], ARGV[3]) == 0 then return 0 end
redis.call('ZREM', KEYS[3], ARGV[3])
if ARGV[4] == '1' and not redis.call('ZSCORE', KEYS[2], ARGV[2]) then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[5], ARGV[1])
else
  local state = redis.call('HGET', KEYS[5], ARGV[1])
  if state then redis.call('HSET', KEYS[5], ARGV[1], (string.gsub(state, ' .*', ' 0'))) end
end
if ARGV[5] ~= '' then redis.call('HSET', KEYS[6], ARGV[1], ARGV[5]) end
return 1
