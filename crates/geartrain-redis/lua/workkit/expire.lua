-- Ends an attempt whose lease has expired. The last run of a job is queued again.
-- KEYS: S:jobs, S:next, inflight, owner   ARGV: id, entry, attempt, now, '1' if the run is to be repeated
local deadline = redis.call('ZSCORE', KEYS[3], ARGV[3])
if not deadline or tonumber(deadline) > tonumber(ARGV[4]) then return 0 end
redis.call('ZREM', KEYS[3], ARGV[3])
redis.call('HDEL', KEYS[4], ARGV[3])
if ARGV[5] == '1' and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  local score = redis.call('ZSCORE', KEYS[2], ARGV[2])
  if not score or tonumber(score) > tonumber(ARGV[4]) then redis.call('ZADD', KEYS[2], ARGV[4], ARGV[2]) end
end
return 1
