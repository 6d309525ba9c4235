-- Removes all equal tasks of a queue. KEYS: queue, marker, attempts
-- ARGV: cancel channel, task, MD5 of the task
local wrong = wrong_type(KEYS[1], 'list') or wrong_type(KEYS[3], 'hash')
if wrong then return wrong end
local removed = redis.call('LREM', KEYS[1], 0, ARGV[2])
if removed > 0 then
  redis.call('DEL', KEYS[2])
  redis.call('HDEL', KEYS[3], ARGV[3])
end
redis.call('PUBLISH', ARGV[1], ARGV[2])
return removed
