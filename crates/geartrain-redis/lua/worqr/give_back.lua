-- Returns a task to the front of its queue. KEYS: queue, process, process set   ARGV: process ID, work channel
-- Replies 0 if the process is gone.
local wrong = wrong_type(KEYS[1], 'list') or wrong_type(KEYS[2], 'list') or wrong_type(KEYS[3], 'set')
if wrong then return wrong end
redis.call('SREM', KEYS[3], ARGV[1])
local task = redis.call('RPOP', KEYS[2])
if not task then return 0 end
redis.call('RPUSH', KEYS[1], task)
redis.call('PUBLISH', ARGV[2], 1)
return 1
