-- Takes queued jobs out of work. ARGV: target, most bytes of inputs, IDs
-- Replies for each ID, until there are too many bytes: ID, 'ok', 'unknown', 'running', 'complete' or 'other', input,
-- retries, failed attempts, queue, second in which it is due or '-'.
-- A record is the queue, the second, a number that grows from job to job, and the target.
local clock = redis.call('TIME')
local place, bytes, replies = tonumber(clock[1]) * 1000000 + tonumber(clock[2]), 0, {}

-- Removes an ID from its queue.
local function take_out(id)
  local due = redis.call('ZSCORE', queues.scheduled, id)
  if due then
    redis.call('ZREM', queues.scheduled, id)
    return 'scheduled', due
  end
  for _, name in ipairs({ 'high', 'normal', 'low' }) do
    -- Jobs are listed from the right.
    if redis.call('LREM', queues[name], -1, id) > 0 then return name, '-' end
  end
end

local function set_aside(id)
  local is = kind(job_key(id))
  local job = is == 'hash' and redis.call('HMGET', job_key(id), 'status', 'input', 'gt:retries', 'gt:attempts')
  if not job or not job[1] or not job[2] then
    -- As a pop does: what is no job cannot be run.
    take_out(id)
    return { id, 'unknown', '', '', '', '', '' }
  end
  local record = redis.call('HGET', moving, id)
  local from, due, to
  if record then
    from, due, to = string.match(record, '^(%S+) (%S+) %S+ (.*)$')
    if to ~= ARGV[4] then return { id, 'other', '', '', '', '', '' } end
  elseif job[1] == 'success' or job[1] == 'error' then return { id, 'complete', '', '', '', '', '' }
  elseif job[1] == 'idle' and not attempt(id) then
    from, due = take_out(id)
    if from then
      place = place + 1
      redis.call('HSET', moving, id, from .. ' ' .. due .. ' ' .. string.format('%.0f', place) .. ' ' .. ARGV[4])
    end
  end
  -- A job in no queue is being put or taken by another implementation.
  if not from then return { id, 'running', '', '', '', '', '' } end
  bytes = bytes + #job[2]
  return { id, 'ok', job[2], job[3] or '', job[4] or '', from, due }
end

for at = 6, #ARGV do
  if bytes > tonumber(ARGV[5]) then break end
  replies[#replies + 1] = set_aside(ARGV[at])
end
return replies
