-- Registers a worker. KEYS: workers, expiringWorkers, timer   ARGV: worker, milliseconds
local wrong = wrong_type(KEYS[1], 'set') or wrong_type(KEYS[2], 'set')
if wrong then return wrong end
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('SET', KEYS[3], 'RUN', 'PX', ARGV[2])
return 1
