-- Sets jobs aside: entry, payload and retries become one record, which no listener looks at.
-- KEYS: S:jobs, S:next, inflight, retry, moving, schedules   ARGV: target, S, then id and entry of each job
-- Replies for each 1: set aside, 0: it has no entry, or is set aside already, 2: a worker has a run of it.
local held, replies = {}, {}
for _, attempt in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  held[string.match(attempt, '^(.*):') or attempt] = true
end
for at = 3, #ARGV, 2 do
  local id, entry, reply = ARGV[at], ARGV[at + 1], 0
  local score, payload = redis.call('ZSCORE', KEYS[2], entry), redis.call('HGET', KEYS[1], id)
  if held[id] then reply = 2
  elseif score and payload and redis.call('HEXISTS', KEYS[5], id) == 0 then
    local retry = redis.call('HGET', KEYS[4], id) or ''
    local record = cjson.encode({ to = ARGV[1], entry = entry, score = score, retry = retry })
    redis.call('HSET', KEYS[5], id, record .. '\n' .. payload)
    redis.call('SADD', KEYS[6], ARGV[2])
    redis.call('ZREM', KEYS[2], entry)
    redis.call('HDEL', KEYS[1], id)
    redis.call('HDEL', KEYS[4], id)
    reply = 1
  end
  replies[#replies + 1] = reply
end
return replies
