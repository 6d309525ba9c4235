-- Takes queued jobs out of work. ARGV: target, most bytes of inputs, IDs
-- Replies for each ID, until there are too many bytes: ID, 'ok', 'unknown', 'running', 'complete' or 'other', input,
-- retries, failed attempts, queue, second in which it is due or '-'.
-- A record is the queue, the second, a number that grows from job to job, and the target.
local clock = redis.call('TIME')
local place, bytes, replies = tonumber(clock[1]) * 1000000 + tonumber(clock[2]), 0, {}
local ids = { unpack(ARGV, 6) }
local records = redis.call('HMGET', moving, unpack(ids))
local held = redis.call('HMGET', inflight, unpack(ids))
local some_are_due = redis.call('EXISTS', queues.scheduled) == 1
local new = {}

-- The right ends of the lists, where jobs are taken and listed from. Mostly these are the jobs that are asked for: how
-- many of them are taken is counted, and they are cut off together.
local ends, taken = {}, {}
for _, name in ipairs({ 'high', 'normal', 'low' }) do
  ends[name], taken[name] = redis.call('LRANGE', queues[name], -#ids, -1), 0
end

local function cut_off()
  for name, count in pairs(taken) do
    if count > 0 then redis.call('LTRIM', queues[name], 0, -count - 1) end
    ends[name], taken[name] = {}, 0
  end
end

-- Removes an ID from its queue.
local function take_out(id)
  local due = some_are_due and redis.call('ZSCORE', queues.scheduled, id)
  if due then
    redis.call('ZREM', queues.scheduled, id)
    return 'scheduled', due
  end
  for name, list in pairs(ends) do
    if list[#list - taken[name]] == id then
      taken[name] = taken[name] + 1
      return name, '-'
    end
  end
  cut_off()
  for _, name in ipairs({ 'high', 'normal', 'low' }) do
    if redis.call('LREM', queues[name], -1, id) > 0 then return name, '-' end
  end
end

local function set_aside(id, record, is_held)
  local job = redis.pcall('HMGET', job_key(id), 'status', 'input', 'gt:retries', 'gt:attempts')
  if job.err or not job[1] or not job[2] then
    -- As a pop does: what is no job cannot be run.
    take_out(id)
    return { id, 'unknown', '', '', '', '', '' }
  end
  local from, due, to
  if record then
    from, due, to = string.match(record, '^(%S+) (%S+) %S+ (.*)$')
    if to ~= ARGV[4] then return { id, 'other', '', '', '', '', '' } end
  elseif job[1] == 'success' or job[1] == 'error' then return { id, 'complete', '', '', '', '', '' }
  elseif job[1] == 'idle' and not is_held then
    from, due = take_out(id)
    if from then
      place = place + 1
      new[#new + 1] = id
      new[#new + 1] = from .. ' ' .. due .. ' ' .. string.format('%.0f', place) .. ' ' .. ARGV[4]
    end
  end
  -- A job in no queue is being put or taken by another implementation.
  if not from then return { id, 'running', '', '', '', '', '' } end
  bytes = bytes + #job[2]
  return { id, 'ok', job[2], job[3] or '', job[4] or '', from, due }
end

for at = 1, #ids do
  if bytes > tonumber(ARGV[5]) then break end
  replies[at] = set_aside(ids[at], records[at], held[at])
end
if new[1] then redis.call('HSET', moving, unpack(new)) end
cut_off()
return replies
