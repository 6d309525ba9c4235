-- Forgets the retries of jobs that another listener has finished. KEYS: S:jobs, retry   ARGV: ids
local forgotten = 0
for _, id in ipairs(ARGV) do
  if redis.call('HEXISTS', KEYS[1], id) == 0 then forgotten = forgotten + redis.call('HDEL', KEYS[2], id) end
end
return forgotten
