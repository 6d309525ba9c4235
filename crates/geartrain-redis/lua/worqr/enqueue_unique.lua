-- Adds a task unless an equal one is unfinished. Other implementations take an empty marker for none.
-- KEYS: queue, marker   ARGV: work channel, task
local wrong = wrong_type(KEYS[1], 'list') or wrong_type(KEYS[2], 'string')
if wrong then return wrong end
local marker = redis.call('GET', KEYS[2])
if marker and marker ~= '' then return 0 end
redis.call('SET', KEYS[2], ' ')
redis.call('LPUSH', KEYS[1], ARGV[2])
redis.call('PUBLISH', ARGV[1], 1)
return 1
