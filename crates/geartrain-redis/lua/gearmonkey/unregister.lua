-- Takes a worker off the count. ARGV: worker
if redis.call('ZREM', workers, ARGV[4]) == 0 then return 0 end
local registered = counter(count)
if registered and registered > 0 then redis.call('DECR', count) end
return 1
