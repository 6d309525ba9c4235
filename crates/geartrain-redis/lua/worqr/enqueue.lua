-- Adds tasks at the back of a queue. KEYS: queue   ARGV: work channel, tasks
local wrong = wrong_type(KEYS[1], 'list')
if wrong then return wrong end
for place = 2, #ARGV do redis.call('LPUSH', KEYS[1], ARGV[place]) end
redis.call('PUBLISH', ARGV[1], #ARGV - 1)
return #ARGV - 1
