-- Queues a job again that some worker is thought to have lost. ARGV: id, now in seconds
-- Replies 'ok', 'none', 'ended' or 'queued'.
local id = ARGV[4]
local is = kind(job_key(id))
if is == 'none' then return { 'none' } end
if is ~= 'hash' then return bad(job_key(id), 'is a ' .. is .. ', not a hash') end
local job = redis.call('HMGET', job_key(id), 'status', 'input')
if not job[1] then return bad(job_key(id), 'has no status') end
if not job[2] then return bad(job_key(id), 'has no input') end
if job[1] == 'success' or job[1] == 'error' then return { 'ended' } end
local _, from = attempt(id)
if not from then
  local queued = redis.call('HGET', moving, id) or redis.call('ZSCORE', queues.scheduled, id)
  for _, name in ipairs({ 'high', 'normal', 'low' }) do queued = queued or redis.call('LPOS', queues[name], id) end
  if queued then return { 'queued' } end
end
requeue(id, from or 'normal', ARGV[5], '')
return { 'ok' }
