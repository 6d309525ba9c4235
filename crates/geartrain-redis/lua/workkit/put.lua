-- Inserts a job, unless the schedule has it: then S:next is left alone, because the job may be running.
-- KEYS: S:jobs, S:next, retry, dead, schedules   ARGV: id, payload, score, entry, retries or '', S
if redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[4])
redis.call('HDEL', KEYS[3], ARGV[1])
redis.call('HDEL', KEYS[4], ARGV[1])
if ARGV[5] ~= '' then redis.call('HSET', KEYS[3], ARGV[1], ARGV[5] .. ' 0') end
redis.call('SADD', KEYS[5], ARGV[6])
return 1
