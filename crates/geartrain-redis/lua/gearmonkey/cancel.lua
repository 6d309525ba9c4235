-- Ends a queued job as cancelled, or asks our worker that has it. ARGV: id
-- Replies 'done', 'asked', 'none', or 'elsewhere' with the status if no queue of ours and no worker of ours has it.
local id = ARGV[4]
local is = kind(job_key(id))
if is == 'none' then return { 'none' } end
if is ~= 'hash' then return bad(job_key(id), 'is a ' .. is .. ', not a hash') end
local status = redis.call('HGET', job_key(id), 'status')
if not status then return bad(job_key(id), 'has no status') end
if status == 'success' or status == 'error' then return { 'none' } end
if attempt(id) then
  redis.call('SADD', cancelled, id)
  return { 'asked' }
end
local removed = redis.call('ZREM', queues.scheduled, id)
for _, name in ipairs({ 'high', 'normal', 'low' }) do removed = removed + redis.call('LREM', queues[name], 0, id) end
if removed == 0 then return { 'elsewhere', status } end
finish(id, 'error', 'cancelled', 'cancelled')
return { 'done' }
