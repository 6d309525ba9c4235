-- Removes jobs that are set aside, or puts them back in front, in this order. ARGV: 'remove' or 'return', IDs
-- Replies the IDs that were set aside.
local ids = { unpack(ARGV, 5) }
local records = redis.call('HMGET', moving, unpack(ids))
local ended, keys, seen = {}, {}, {}
for at = #ids, 1, -1 do
  local id, record = ids[at], records[at]
  if record and not seen[id] then
    seen[id] = true
    ended[#ended + 1] = id
    keys[#ended] = job_key(id)
  end
end
if not ended[1] then return ended end
redis.call('HDEL', moving, unpack(ended))
if ARGV[4] == 'remove' then
  redis.call('DEL', unpack(keys))
  return ended
end
for at = #ids, 1, -1 do
  local id = ids[at]
  if seen[id] then
    seen[id] = nil
    local from, due = string.match(records[at], '^(%S+) (%S+)')
    if from == 'scheduled' then redis.call('ZADD', queues.scheduled, due, id)
    else redis.call('RPUSH', queues[from] or queues.normal, id) end
  end
end
return ended
