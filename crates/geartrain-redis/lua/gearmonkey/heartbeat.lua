-- Extends a lease and, with progress, notes it. ARGV: id, token, worker, deadline, dividend or '', divisor
local from, no = held(ARGV[4], ARGV[5], ARGV[6])
if not from then return no end
if redis.call('SISMEMBER', cancelled, ARGV[4]) == 1 then
  finish(ARGV[4], 'error', 'cancelled', 'cancelled')
  return { 'lost' }
end
redis.call('ZADD', leases, 'XX', ARGV[7], ARGV[4])
if ARGV[8] ~= '' then
  redis.call('HSET', job_key(ARGV[4]), 'status:dividend', ARGV[8], 'status:divisor', ARGV[9])
end
return { 'ok' }
