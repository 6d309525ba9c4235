-- Finishes a task. KEYS: process, process set, marker, attempts
-- ARGV: process ID, done channel, done message, MD5 of the task
-- Replies 0 if the process is gone: its task may be running elsewhere, so that the marker stays.
local wrong = wrong_type(KEYS[1], 'list') or wrong_type(KEYS[2], 'set') or wrong_type(KEYS[4], 'hash')
if wrong then return wrong end
redis.call('SREM', KEYS[2], ARGV[1])
if redis.call('DEL', KEYS[1]) == 0 then return 0 end
redis.call('DEL', KEYS[3])
redis.call('HDEL', KEYS[4], ARGV[4])
redis.call('PUBLISH', ARGV[2], ARGV[3])
return 1
