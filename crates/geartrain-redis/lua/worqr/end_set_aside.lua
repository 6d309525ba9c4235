-- Removes a task that is set aside, or returns it to the front of its queue. KEYS: queue, moving, attempts
-- ARGV: 'remove' or 'return', what markers begin with, work channel, then IDs and the MD5 of their tasks
-- Replies the IDs that were set aside.
local wrong = wrong_type(KEYS[1], 'list') or wrong_type(KEYS[2], 'hash') or wrong_type(KEYS[3], 'hash')
if wrong then return wrong end
local ended = {}
for at = #ARGV - 1, 4, -2 do
  local id = ARGV[at]
  local record = redis.call('HGET', KEYS[2], id)
  if record then
    redis.call('HDEL', KEYS[2], id)
    if ARGV[1] == 'remove' then
      redis.call('DEL', ARGV[2] .. ARGV[at + 1])
      redis.call('HDEL', KEYS[3], ARGV[at + 1])
    else
      local _, last = string.find(record, '^%S+ %S+ ')
      redis.call('RPUSH', KEYS[1], string.sub(record, last + 1))
    end
    ended[#ended + 1] = id
  end
end
if ARGV[1] == 'return' and #ended > 0 then redis.call('PUBLISH', ARGV[3], #ended) end
return ended
