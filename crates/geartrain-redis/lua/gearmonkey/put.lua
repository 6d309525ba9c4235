-- Creates a job. ARGV: input, priority, due second or '', '1' for roll call, retries or ''
-- Replies the ID, or 0 if no worker is registered.
if ARGV[7] == '1' then
  local registered = redis.call('GET', count)
  if not registered or not string.match(registered, '^%d+$') or tonumber(registered) < 1 then return '0' end
end
local last, wrong = counter(uid)
if wrong then return wrong end
if last < 0 then return bad(uid, 'is negative: ' .. last) end
-- After the counter was lost, IDs repeat: the ID of a job that is still there is not given out again, because
-- the new job would inherit its expiry.
local id
for _ = 1, 10000 do
  redis.call('INCR', uid)
  id = redis.call('GET', uid)
  if redis.call('EXISTS', job_key(id)) == 0 then break end
  id = nil
end
if not id then return bad(uid, 'is behind the IDs of the jobs that there are') end
redis.call('HSET', job_key(id), 'status', 'idle', 'input', ARGV[4])
if ARGV[8] ~= '' then redis.call('HSET', job_key(id), 'gt:retries', ARGV[8]) end
redis.call('PUBLISH', ARGV[3], 'create:' .. id)
if ARGV[6] ~= '' then redis.call('ZADD', queues.scheduled, ARGV[6], id)
else redis.call('LPUSH', queues[ARGV[5]], id) end
return id
