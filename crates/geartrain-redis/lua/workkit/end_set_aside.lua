-- Removes jobs that are set aside, or puts them back as they were.
-- KEYS: S:jobs, S:next, retry, moving   ARGV: '1' to put them back or '', then ids
-- Replies for each 1 if it was set aside. A job that was put again meanwhile is one with it.
local replies = {}
for at = 2, #ARGV do
  local id = ARGV[at]
  local record = ARGV[1] == '1' and redis.call('HGET', KEYS[4], id)
  if record then
    local ending = string.find(record, '\n', 1, true)
    local was = cjson.decode(string.sub(record, 1, ending - 1))
    if redis.call('HSETNX', KEYS[1], id, string.sub(record, ending + 1)) == 1 then
      redis.call('ZADD', KEYS[2], was.score, was.entry)
      if was.retry ~= '' then redis.call('HSET', KEYS[3], id, was.retry) end
    end
  end
  replies[#replies + 1] = redis.call('HDEL', KEYS[4], id)
end
return replies
