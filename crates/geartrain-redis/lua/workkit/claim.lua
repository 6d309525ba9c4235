-- Claims a due run: moves the entry from the score that was seen to its next one in one step.
-- KEYS: S:jobs, S:next, inflight, owner, schedules
-- ARGV: id, entry, seen score, next score or '', attempt, deadline, record,
-- now if runs must not overlap or '', S
-- Replies 1: claimed, 0: another listener was faster, 2: the run is skipped because an earlier one goes on.
-- A claim that is sent again after a lost reply is claimed already.
if redis.call('HEXISTS', KEYS[4], ARGV[5]) == 1 then return 1 end
local score = redis.call('ZSCORE', KEYS[2], ARGV[2])
if not score or tonumber(score) ~= tonumber(ARGV[3]) then return 0 end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local overlaps = false
if ARGV[8] ~= '' and ARGV[4] ~= '' then
  for _, attempt in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], ARGV[8], '+inf')) do
    overlaps = overlaps or string.sub(attempt, 1, #ARGV[1] + 1) == ARGV[1] .. ':'
  end
end
if ARGV[4] == '' then redis.call('ZREM', KEYS[2], ARGV[2])
else redis.call('ZADD', KEYS[2], ARGV[4], ARGV[2]) end
if overlaps then return 2 end
redis.call('ZADD', KEYS[3], ARGV[6], ARGV[5])
redis.call('HSET', KEYS[4], ARGV[5], ARGV[7])
redis.call('SADD', KEYS[5], ARGV[9])
return 1
