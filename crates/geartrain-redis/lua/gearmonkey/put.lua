-- Creates a job. ARGV: input, priority, due second or '', '1' for roll call, retries or '', transfer ID or ''
-- Replies the ID, or 0 if no worker is registered; and whether it is 'new', or of an earlier put with the transfer ID:
-- the 'same' or an 'other' job.
if ARGV[7] == '1' then
  local registered = redis.call('GET', count)
  if not registered or not string.match(registered, '^%d+$') or tonumber(registered) < 1 then return { '0', '' } end
end
local transfer = ARGV[9]
local known = transfer ~= '' and redis.call('HGET', transfers, transfer)
if known and kind(job_key(known)) == 'hash' then
  return { known, redis.call('HGET', job_key(known), 'input') == ARGV[4] and 'same' or 'other' }
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
if transfer ~= '' then
  -- What is remembered of jobs that are gone is removed bit by bit.
  local some = redis.call('HRANDFIELD', transfers, 2, 'WITHVALUES')
  for at = 1, #some, 2 do
    if redis.call('EXISTS', job_key(some[at + 1])) == 0 then redis.call('HDEL', transfers, some[at]) end
  end
  redis.call('HSET', transfers, transfer, id)
  redis.call('EXPIRE', transfers, 2592000)
end
return { id, 'new' }
