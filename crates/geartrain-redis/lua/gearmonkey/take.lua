-- Takes jobs: those that are due, then by priority.
-- ARGV: now in seconds, deadline in ms, token, worker, count, now in ms, how many lost workers end a job
-- Replies the jobs, what was removed from the queues because it cannot be run, the next due second, and the jobs
-- and workers that were lost.
local expired, gone = recover(ARGV[9], ARGV[4], ARGV[10])
local jobs, problems = {}, {}
for _ = 1, 1000 do
  if #jobs >= tonumber(ARGV[8]) then break end
  local id, from
  local due = redis.call('ZRANGEBYSCORE', queues.scheduled, '-inf', ARGV[4], 'LIMIT', 0, 1)
  if due[1] then
    id, from = due[1], 'scheduled'
    redis.call('ZREM', queues.scheduled, id)
  else
    for _, name in ipairs({ 'high', 'normal', 'low' }) do
      id = redis.call('RPOP', queues[name])
      if id then
        from = name
        break
      end
    end
  end
  if not id then break end
  local key, why = job_key(id), nil
  local is = kind(key)
  if not string.match(id, '^[1-9]%d*$') or #id > 19 then why = 'is no job: an ID is a positive number'
  elseif is == 'none' then why = 'is gone'
  elseif is ~= 'hash' then why = 'is a ' .. is .. ', not a hash'
  else
    local job = redis.call('HMGET', key, 'status', 'input', 'gt:retries', 'gt:attempts')
    if job[1] == 'success' or job[1] == 'error' then why = 'has ended'
    elseif not job[1] then why = 'has no status'
    elseif not job[2] then why = 'has no input'
    else
      redis.call('ZADD', leases, ARGV[5], id)
      redis.call('HSET', inflight, id, ARGV[6] .. ' ' .. from .. ' ' .. ARGV[7])
      redis.call('SREM', cancelled, id)
      redis.call('PUBLISH', ARGV[3], 'start:' .. id)
      redis.call('HSET', key, 'status', 'busy')
      jobs[#jobs + 1] = { id, from, job[2], job[3] or '', job[4] or '' }
    end
  end
  if why then problems[#problems + 1] = { key, why } end
end
local next = redis.call('ZRANGE', queues.scheduled, 0, 0, 'WITHSCORES')
return { jobs, problems, next[2] or '', expired, gone }
