-- Why attempts ended that did not complete their job: a list in a field of the job's own hash, so that it goes
-- when a foreign script removes the job. It is no part of the history, which Qless shows and counts. It is JSON,
-- because jobs of Qless clients have it too, and these read such a hash as text.

local ENDS_MAX = 25
local MESSAGE_BYTES_MAX = 1024

-- The beginning of a text, in whole characters.
function attempts.clip(text, max)
  if #text <= max then return text end
  while max > 0 do
    local byte = text:byte(max + 1)
    if byte < 128 or byte > 191 then break end
    max = max - 1
  end
  return text:sub(1, max)
end

-- Adds the end of the current attempt. Its worker is still that of the job.
function attempts.add(of, reason, group, message)
  local all = cjson.decode(call('HGET', of.at, 'gt-attempts') or '[]')
  all[#all + 1] = { when = exact(floor(now)), reason = reason, worker = of.worker ~= '' and of.worker or nil,
    group = group, message = message and attempts.clip(message, MESSAGE_BYTES_MAX) }
  if #all > ENDS_MAX then table.remove(all, 1) end
  call('HSET', of.at, 'gt-attempts', cjson.encode(all))
end

-- The ends that a field has, the oldest first, or nil.
function attempts.of(stored)
  if not stored then return nil end
  local all = cjson.decode(stored)
  -- As JSON they would lose digits.
  for _, one in ipairs(all) do one.when = tonumber(one.when) end
  return all
end
