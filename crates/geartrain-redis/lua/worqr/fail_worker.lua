-- Returns the tasks of a worker to the front of their queues, the oldest in front, and removes the worker; or
-- with a member, ends its work on that queue only.
-- KEYS: workers, expiringWorkers, permanentWorkers, timer, workingQueues
-- ARGV: prefix, worker, '1' if it need not be dead, member or '', '1' if the processes follow, processes
-- Replies with what was done ('failed', 'alive', or 'left' to the live workers that share its process sets), the
-- processes whose tasks were returned, and what is wrong with keys that were left alone.
local prefix, worker, forced, only = ARGV[1] .. ':', ARGV[2], ARGV[3] == '1', ARGV[4]
for place, kind in ipairs({ 'set', 'set', 'set', 'string', 'set' }) do
  local wrong = wrong_type(KEYS[place], kind)
  if wrong then return wrong end
end
if not forced and redis.call('EXISTS', KEYS[4]) == 1 then return { 'alive', {}, {} } end

local members = redis.call('SMEMBERS', KEYS[5])
if only ~= '' then members = { only } end
local function is_own(member) return string.sub(member, 1, #worker + 1) == worker .. '_' end

-- A process set that is named by its queue alone does not say whose processes it has. Another worker of that
-- queue, if it is alive, fails this one itself.
local is_left = false
if ARGV[5] ~= '1' then
  for _, other in ipairs(redis.call('SMEMBERS', KEYS[1])) do
    if other ~= worker and (redis.call('EXISTS', prefix .. 'workerTimers:' .. other) == 1
        or redis.call('SISMEMBER', KEYS[3], other) == 1) then
      local queues = prefix .. 'workingQueues:' .. other
      for _, member in ipairs(members) do
        is_left = is_left or not is_own(member) and not wrong_type(queues, 'set')
          and redis.call('SISMEMBER', queues, member) == 1
      end
    end
  end
end

-- Worqr's design registers the queue, but names the process set by the worker too.
local sets = {}
for _, member in ipairs(members) do
  if is_own(member) then
    table.insert(sets, { member = member, name = member })
  else
    table.insert(sets, { member = member, name = worker .. '_' .. member })
    if not is_left then table.insert(sets, { member = member, name = member }) end
  end
end

local found, problems, blocked = {}, {}, {}
local function check(key, kind)
  local wrong = wrong_type(key, kind)
  if wrong then table.insert(problems, (string.gsub(wrong.err, '^WRONGKEY ', ''))) end
  return not wrong
end
for _, of in ipairs(sets) do
  local member, set = of.member, prefix .. 'workingProcesses:' .. of.name
  if not check(set, 'set') then
    blocked[member] = true
  else
    local processes = redis.call('SMEMBERS', set)
    if ARGV[5] == '1' then
      processes = {}
      for place = 6, #ARGV do
        if redis.call('SISMEMBER', set, ARGV[place]) == 1 then table.insert(processes, ARGV[place]) end
      end
    end
    for _, process in ipairs(processes) do
      local queue, id = string.match(process, '^(.*)_([^_]*)$')
      if not queue then
        table.insert(problems, set .. ' has a member that is no process ID: ' .. process)
        blocked[member] = true
      elseif not check(prefix .. 'processes:' .. process, 'list')
          or not check(prefix .. 'queues:' .. queue, 'list') then
        blocked[member] = true
      else
        table.insert(found, { process = process, queue = queue, id = id, set = set })
      end
    end
  end
end

table.sort(found, function(one, other) return one.id > other.id end)
local returned, queues = {}, {}
for _, process in ipairs(found) do
  local key = prefix .. 'processes:' .. process.process
  local task = redis.call('RPOP', key)
  if task then
    redis.call('RPUSH', prefix .. 'queues:' .. process.queue, task)
    table.insert(returned, process.process)
    queues[process.queue] = true
  end
  redis.call('SREM', process.set, process.process)
end

if not is_left then
  local is_done = true
  for _, member in ipairs(members) do
    if blocked[member] then is_done = false else redis.call('SREM', KEYS[5], member) end
  end
  if only == '' then redis.call('DEL', KEYS[4]) end
  for place = 1, 3 do
    if only == '' and is_done then redis.call('SREM', KEYS[place], worker) end
  end
end
for queue in pairs(queues) do
  redis.call('PUBLISH', ARGV[1] .. '_' .. queue .. '_work', redis.call('LLEN', prefix .. 'queues:' .. queue))
end
return { is_left and 'left' or 'failed', returned, problems }
