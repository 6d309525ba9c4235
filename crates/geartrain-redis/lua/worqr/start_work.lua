-- Registers a worker's set of processes. KEYS: timer, workingQueues   ARGV: member
-- Replies 0 if the worker has been declared dead.
local wrong = wrong_type(KEYS[2], 'set')
if wrong then return wrong end
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('SADD', KEYS[2], ARGV[1])
return 1
