-- In front of every script: an error in the middle of one undoes nothing, so that types are checked first.
local function wrong_type(key, wanted)
  local found = redis.call('TYPE', key).ok
  if found ~= wanted and found ~= 'none' then
    return redis.error_reply('WRONGKEY ' .. key .. ' is a ' .. found .. ', not a ' .. wanted)
  end
end
