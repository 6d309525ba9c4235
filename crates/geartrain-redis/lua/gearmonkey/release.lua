-- Queues a job again without using up a retry. ARGV: id, token, worker, now in seconds, due second or ''
local from, no = held(ARGV[4], ARGV[5], ARGV[6])
if not from then return no end
if redis.call('SISMEMBER', cancelled, ARGV[4]) == 1 then finish(ARGV[4], 'error', 'cancelled', 'cancelled')
else requeue(ARGV[4], from, ARGV[7], ARGV[8]) end
return { 'ok' }
