-- Registers a worker, or moves its deadline. ARGV: worker, deadline in ms
local _, wrong = counter(count)
if wrong then return wrong end
if redis.call('ZADD', workers, 'NX', ARGV[5], ARGV[4]) == 1 then
  redis.call('INCR', count)
  return 1
end
redis.call('ZADD', workers, 'XX', ARGV[5], ARGV[4])
return 0
