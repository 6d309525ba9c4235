-- What happened, kept for those who come back and want to know what they missed.
--
-- A list of packed events, each with its position, and beside it the position of the last one, of the last one that is not kept, and what they count.

local EVENTS_MAX = 10000
local EVENTS_BYTES_MAX = 16777216
local EVENT_BYTES = 256 -- about what an event takes besides what was said in it
local LISTENED_MAX = 86400 -- seconds for which events are kept after anybody listened
local NOTED_MAX = 3600 -- seconds after which it is noted again that somebody listens

-- One whose holder may be nobody: a list cannot end with nil in Lua, so it is packed by hand.
function events.canceled(jid, of)
  local was = NIL
  if of then was = '\146' .. pack(of.queue) .. (of.worker ~= '' and pack(of.worker) or NIL) end
  out.events[#out.events + 1] = '\129' .. pack('Canceled') .. '\130' .. pack('jid') .. pack(jid) .. pack('was') .. was
end

local function positions()
  local stored = call('HMGET', key.counts, 'events-last', 'events-dropped', 'events-bytes')
  return tonumber(stored[1]) or 0, tonumber(stored[2]) or 0, tonumber(stored[3]) or 0
end

function events.last()
  local last = positions()
  return last
end

local function event_bytes(text)
  return EVENT_BYTES + #text
end

-- How many messages of this call go over channels that all may listen to: a worker's own is not among them.
local function announced()
  local workers, count = prefix .. 'ql:w:', 0
  for at = 1, out.count, 2 do
    if string.sub(out.ql[at], 1, #workers) ~= workers then count = count + 1 end
  end
  return count
end

-- Gives positions to what happened, keeps it, and publishes it.
function events.publish()
  local last, dropped, bytes = positions()
  local kept = {}
  for place, event in ipairs(out.events) do
    last = last + 1
    if type(event) == 'table' then event = pack(event) end
    kept[place] = '\146' .. pack(last) .. event
    bytes = bytes + event_bytes(kept[place])
  end
  in_parts(kept, 'RPUSH', key.happened)
  local count = call('LLEN', key.happened)
  while count > EVENTS_MAX or bytes > EVENTS_BYTES_MAX do
    local oldest = call('LPOP', key.happened)
    if not oldest then break end
    dropped = cmsgpack.unpack(oldest)[1]
    bytes = bytes - event_bytes(oldest)
    count = count - 1
  end
  call('HSET', key.counts, 'events-last', last, 'events-dropped', dropped, 'events-bytes', bytes)
  call('PUBLISH', key.events, '\146' .. pack(announced()) .. packed_array(kept))
  out.events = {}
end

-- Begins or stops to keep events. What happens in between is missed by everybody, so that no earlier position is good after it.
local function turn(on)
  local last = positions()
  call('DEL', key.happened)
  call('HSET', key.counts, 'events-last', last + 1, 'events-dropped', last + 1, 'events-bytes', 0)
  if on then call('SET', key.listen, on) else call('DEL', key.listen) end
  known.listening, known.quiet, known.silent = on or false, nil, nil
end

-- Somebody listens. Answers the position of the last event.
function events.listen()
  local noted = tonumber(say.listening())
  if not noted then
    turn(now)
  elseif now - noted > NOTED_MAX then
    call('SET', key.listen, now)
    known.listening = now
  end
  local last = positions()
  return last
end

-- When events are no longer kept, if nobody listens until then.
function events.ends()
  local noted = tonumber(say.listening())
  return noted and finite(noted + LISTENED_MAX) or nil
end

function events.stop()
  turn(nil)
end

-- The events after a position, each packed.
function events.since(position, count)
  local last, dropped = positions()
  if not say.listening() then dropped = last end
  if position > last then refuse('CursorAhead', { after = position, newest = last }) end
  if position < dropped then
    local first = call('LINDEX', key.happened, 0)
    refuse('CursorTooOld', { after = position, oldest = first and cmsgpack.unpack(first)[1] or last + 1 })
  end
  -- Positions have no gaps between those that are kept.
  local length = call('LLEN', key.happened)
  local first = length - (last - position)
  if count <= 0 or first >= length then return {} end
  if first < 0 then first = 0 end
  return call('LRANGE', key.happened, first, first + count - 1)
end
