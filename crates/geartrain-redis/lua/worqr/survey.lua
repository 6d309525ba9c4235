-- Lists the workers. KEYS: workers, permanentWorkers   ARGV: prefix
-- Replies with a list for each: its ID, 1 if it is alive, its members of workingQueues, and its own processes.
-- Process sets that are named by a queue alone belong to no single worker.
local wrong = wrong_type(KEYS[1], 'set') or wrong_type(KEYS[2], 'set')
if wrong then return wrong end
local prefix, all = ARGV[1] .. ':', {}
local function members(key)
  if wrong_type(key, 'set') then return {} end
  return redis.call('SMEMBERS', key)
end
for _, worker in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local alive = redis.call('EXISTS', prefix .. 'workerTimers:' .. worker) == 1
    or redis.call('SISMEMBER', KEYS[2], worker) == 1
  local work, own = members(prefix .. 'workingQueues:' .. worker), {}
  for _, member in ipairs(work) do
    -- Worqr's design registers the queue, but names the process set by the worker too.
    local is_own = string.sub(member, 1, #worker + 1) == worker .. '_'
    local set = is_own and member or worker .. '_' .. member
    for _, process in ipairs(members(prefix .. 'workingProcesses:' .. set)) do table.insert(own, process) end
  end
  table.insert(all, { worker, alive and 1 or 0, work, own })
end
return all
