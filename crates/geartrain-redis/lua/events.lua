-- The event log: retained events, for subscribers that come back and resume.
--
-- A list of packed events, each with its position and time, and beside it the position of the last one, of the last
-- one dropped, and their size.

local EVENTS_MAX = 10000
local EVENTS_BYTES_MAX = 16777216
local EVENT_BYTES = 256 -- approximate size of an event besides its texts
local LISTENED_MAX = 86400 -- seconds for which events are retained after the last subscriber
local NOTED_MAX = 3600 -- seconds after which a subscription is recorded again

-- An event with an optional holder: a list cannot end with nil in Lua, so it is packed by hand.
function events.canceled(jid, of)
  local was = NIL
  if of then was = '\146' .. pack(of.queue) .. (of.worker ~= '' and pack(of.worker) or NIL) end
  out.events[#out.events + 1] = '\129' .. pack('Canceled') .. '\130' .. pack('jid') .. pack(jid)
    .. pack('was') .. was
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

-- How many messages of this call go to channels that all may subscribe to: a worker's own is not among them.
local function announced()
  local workers, count = prefix .. 'ql:w:', 0
  for at = 1, out.count, 2 do
    if string.sub(out.ql[at], 1, #workers) ~= workers then count = count + 1 end
  end
  return count
end

-- Assigns positions to the events of this call, retains and publishes them.
function events.publish()
  local last, dropped, bytes = positions()
  local kept = {}
  for place, event in ipairs(out.events) do
    last = last + 1
    if type(event) == 'table' then event = pack(event) end
    kept[place] = '\147' .. pack(last) .. event .. pack(now)
    bytes = bytes + event_bytes(kept[place])
  end
  in_parts(kept, 'RPUSH', key.event_log)
  local count = call('LLEN', key.event_log)
  while count > EVENTS_MAX or bytes > EVENTS_BYTES_MAX do
    local oldest = call('LPOP', key.event_log)
    if not oldest then break end
    dropped = cmsgpack.unpack(oldest)[1]
    bytes = bytes - event_bytes(oldest)
    count = count - 1
  end
  call('HSET', key.counts, 'events-last', last, 'events-dropped', dropped, 'events-bytes', bytes)
  call('PUBLISH', key.events, '\146' .. pack(announced()) .. packed_array(kept))
  out.events = {}
end

-- Starts or stops the event log. Events in between are lost to all, so no earlier position is valid
-- afterwards.
local function switch(on)
  local last = positions()
  call('DEL', key.event_log)
  call('HSET', key.counts, 'events-last', last + 1, 'events-dropped', last + 1, 'events-bytes', 0)
  if on then call('SET', key.listen, on) else call('DEL', key.listen) end
  cache.event_subscribers, cache.unsubscribed, cache.unpublished = on or false, nil, nil
end

-- Records a subscriber. Returns the position of the last event.
function events.subscribe()
  local noted = tonumber(publish.has_event_subscribers())
  if not noted then
    switch(now)
  elseif now - noted > NOTED_MAX then
    call('SET', key.listen, now)
    cache.event_subscribers = now
  end
  local last = positions()
  return last
end

-- When events are no longer retained, without another subscriber.
function events.ends()
  local noted = tonumber(publish.has_event_subscribers())
  return noted and finite(noted + LISTENED_MAX) or nil
end

-- Discards the retained events.
function events.clear()
  local noted = publish.has_event_subscribers()
  if noted then
    switch(nil)
    switch(noted)
  end
end

function events.stop()
  switch(nil)
end

-- The events after a position, each packed.
function events.after(position, count)
  local last, dropped = positions()
  if not publish.has_event_subscribers() then dropped = last end
  if position > last then refuse('CursorAhead', { after = position, newest = last }) end
  if position < dropped then
    local first = call('LINDEX', key.event_log, 0)
    refuse('CursorTooOld', { after = position, oldest = first and cmsgpack.unpack(first)[1] or last + 1 })
  end
  -- Positions of retained events have no gaps.
  local length = call('LLEN', key.event_log)
  local first = length - (last - position)
  if count <= 0 or first >= length then return {} end
  if first < 0 then first = 0 end
  return call('LRANGE', key.event_log, first, first + count - 1)
end
