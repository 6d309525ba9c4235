-- Queues a job again after a failed attempt, or ends it if no retry is left.
-- ARGV: id, token, worker, now in seconds, due second or '', retries if the job has no number of its own,
-- error text, reason
local from, no = held(ARGV[4], ARGV[5], ARGV[6])
if not from then return no end
local state = redis.call('HMGET', job_key(ARGV[4]), 'gt:retries', 'gt:attempts')
local retries = tonumber(state[1] or ARGV[9]) or tonumber(ARGV[9])
local used = tonumber(state[2] or '0') or 0
if redis.call('SISMEMBER', cancelled, ARGV[4]) == 1 then
  finish(ARGV[4], 'error', 'cancelled', 'cancelled')
  return { 'lost' }
end
if used >= retries then
  finish(ARGV[4], 'error', ARGV[10], ARGV[11])
  return { 'ok', '-1' }
end
redis.call('HSET', job_key(ARGV[4]), 'gt:attempts', used + 1)
requeue(ARGV[4], from, ARGV[7], ARGV[8])
return { 'ok', string.format('%.0f', retries - used - 1) }
