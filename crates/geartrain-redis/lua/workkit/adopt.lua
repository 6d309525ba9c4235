-- Queues a recurring job again whose listener died between taking it and putting it back.
-- KEYS: S:jobs, S:next   ARGV: id, entry, score
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
return redis.call('ZADD', KEYS[2], 'NX', ARGV[3], ARGV[2])
