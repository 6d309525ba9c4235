-- Takes tasks from the front of a queue. KEYS: timer, process set, queue, processes   ARGV: process IDs
-- Replies false if the worker has been declared dead. A take that is sent again after a lost reply has its
-- tasks already.
local wrong = wrong_type(KEYS[2], 'set') or wrong_type(KEYS[3], 'list')
if wrong then return wrong end
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local tasks = {}
for place, process in ipairs(ARGV) do
  local key = KEYS[place + 3]
  local task = redis.call('LINDEX', key, 0)
  if not task then
    task = redis.call('RPOPLPUSH', KEYS[3], key)
    if not task then break end
    redis.call('SADD', KEYS[2], process)
  end
  tasks[place] = task
end
return tasks
