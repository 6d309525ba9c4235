-- Takes waiting tasks out of a queue. KEYS: queue, moving
-- ARGV: target, most bytes of tasks, then for each task its ID, with a + in front if it may be taken from the queue
-- Replies for each, until there are too many bytes: 'ok', 'none' or 'other', and the task.
-- A record is a number that grows from task to task, the target, and the task.
local wrong = wrong_type(KEYS[1], 'list') or wrong_type(KEYS[2], 'hash')
if wrong then return wrong end
local clock = redis.call('TIME')
local place, bytes, replies = tonumber(clock[1]) * 1000000 + tonumber(clock[2]), 0, {}
for at = 3, #ARGV do
  if bytes > tonumber(ARGV[2]) then break end
  local new, id = string.match(ARGV[at], '^(%+?)(.*)$')
  local record = redis.call('HGET', KEYS[2], id)
  local what, task = 'none', ''
  if record then
    local _, last, to = string.find(record, '^%S+ (%S+) ')
    if to == ARGV[1] then what, task = 'ok', string.sub(record, last + 1) else what = 'other' end
  elseif new == '+' then
    local taken = redis.call('RPOP', KEYS[1])
    if taken then
      place, what, task = place + 1, 'ok', taken
      redis.call('HSET', KEYS[2], id, string.format('%.0f', place) .. ' ' .. ARGV[1] .. ' ' .. task)
    end
  end
  bytes = bytes + #task
  replies[#replies + 1] = { what, task }
end
return replies
