-- Removes jobs that are set aside, or puts them back in front, in this order. ARGV: 'remove' or 'return', IDs
-- Replies the IDs that were set aside.
local ended = {}
for at = #ARGV, 5, -1 do
  local id = ARGV[at]
  local record = redis.call('HGET', moving, id)
  if record then
    local from, due = string.match(record, '^(%S+) (%S+)')
    redis.call('HDEL', moving, id)
    if ARGV[4] == 'remove' then redis.call('DEL', job_key(id))
    elseif from == 'scheduled' then redis.call('ZADD', queues.scheduled, due, id)
    else redis.call('RPUSH', queues[from] or queues.normal, id) end
    ended[#ended + 1] = id
  end
end
return ended
