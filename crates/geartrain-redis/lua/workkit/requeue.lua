-- Ends an attempt and queues its run again, unless the job was cancelled or has an earlier score.
-- KEYS: S:jobs, S:next, inflight, owner, retry
-- ARGV: id, entry, attempt, score, retry state or '', score since the claim or '', now
-- If the entry has moved on from the score since the claim, later runs were claimed. Going back would repeat
-- them for listeners that make up missed runs, so that the run is queued now instead.
if redis.call('HDEL', KEYS[4], ARGV[3]) == 0 then return 0 end
redis.call('ZREM', KEYS[3], ARGV[3])
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 1 end
local score = redis.call('ZSCORE', KEYS[2], ARGV[2])
local target = ARGV[4]
if score and ARGV[6] ~= '' and tonumber(score) ~= tonumber(ARGV[6]) then target = ARGV[7] end
if not score or tonumber(score) > tonumber(target) then redis.call('ZADD', KEYS[2], target, ARGV[2]) end
if ARGV[5] ~= '' then redis.call('HSET', KEYS[5], ARGV[1], ARGV[5]) end
return 1
