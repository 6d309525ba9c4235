-- Returns a task whose handler failed to the front, or finishes it if its retries are used up.
-- KEYS: queue, process, process set, attempts, marker
-- ARGV: process ID, work channel, MD5 of the task, retries, done channel, done message
-- Replies with the retries left, -1 if it is finished, -2 if the process is gone.
local wrong = wrong_type(KEYS[1], 'list') or wrong_type(KEYS[2], 'list') or wrong_type(KEYS[3], 'set')
  or wrong_type(KEYS[4], 'hash')
if wrong then return wrong end
redis.call('SREM', KEYS[3], ARGV[1])
local task = redis.call('RPOP', KEYS[2])
if not task then return -2 end
local used = redis.call('HINCRBY', KEYS[4], ARGV[3], 1)
if used > tonumber(ARGV[4]) then
  redis.call('HDEL', KEYS[4], ARGV[3])
  redis.call('DEL', KEYS[5])
  redis.call('PUBLISH', ARGV[5], ARGV[6])
  return -1
end
redis.call('RPUSH', KEYS[1], task)
redis.call('PUBLISH', ARGV[2], 1)
return tonumber(ARGV[4]) - used
