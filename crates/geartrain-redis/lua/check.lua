-- Lists, limits, and checks that many commands share.

local TAGS_MAX = 1000
local PAYLOAD_BYTES_MAX = 67108864
local LOG_BYTES_MAX = 65536
local RETRIES_MAX = 2147483647
local SPAN_MAX = 315360000
local DELAY_MAX = 3155760000
local OFFSET_MAX = 2147483647
local SILENCE_MAX = 60 -- seconds without a sign of life after which a worker no longer counts
local NO_BYTES = '{"$bytes":""}' -- an empty payload

-- How many arguments one Redis command gets: Lua's stack holds some thousands.
local ARGUMENTS_MAX = 2000

-- Text as JSON.
local quote = cjson.encode

-- Names as JSON, cached because they repeat within a call.
local function quote_name(name)
  local quoted = cache.quoted[name]
  if not quoted then
    quoted = quote(name)
    cache.quoted[name] = quoted
  end
  return quoted
end

local function contains(list, member)
  for at = 1, #list do
    if list[at] == member then return true end
  end
  return false
end

local function set_of(list)
  local set = {}
  for at = 1, #list do set[list[at]] = true end
  return set
end

-- Passes a long list to a Redis command in parts.
local function in_parts(list, command, ...)
  local first = { ... }
  local at = 1
  while at <= #list do
    local arguments, n = {}, 0
    for _, argument in ipairs(first) do
      n = n + 1
      arguments[n] = argument
    end
    local last = at + ARGUMENTS_MAX - 1
    if last > #list then last = #list end
    for place = at, last do
      n = n + 1
      arguments[n] = list[place]
    end
    call(command, unpack(arguments, 1, n))
    at = last + 1
  end
end

local function sorted(list)
  table.sort(list)
  return list
end

-- A list as it is stored. An empty one is an object, as in Qless.
local function list_text(list)
  if #list == 0 then return '{}' end
  return cjson.encode(list)
end

local function check_size(what, text, max)
  max = max or PAYLOAD_BYTES_MAX
  if text and #text > max then refuse('TooLarge', { what = what, bytes = #text, max = max }) end
end

local function at_most(what, count, max)
  if count > max then bad(what, 'must be at most ' .. max .. ', not ' .. count) end
end

local function at_least_one(what, list)
  if #list == 0 then bad(what, 'must name at least one') end
end

local function check_retries(retries)
  if retries and retries > RETRIES_MAX then
    bad('retries', 'must be at most ' .. RETRIES_MAX .. ', not ' .. exact(retries))
  end
end

-- The size of a payload, which may be written as base64.
local function bytes_of(text)
  if text:sub(1, 11) ~= '{"$bytes":"' or text:sub(-2) ~= '"}' then return #text end
  local _, padding = text:sub(-4, -3):gsub('=', '')
  return floor((#text - 13) / 4) * 3 - padding
end

local function check_payload(text, what, max)
  max = max or PAYLOAD_BYTES_MAX
  if not text or #text <= max then return end
  local bytes = bytes_of(text)
  if bytes > max then refuse('TooLarge', { what = what or 'payload', bytes = bytes, max = max }) end
end

-- Refuses a span that is not positive or over ten years.
local function check_span(what, span)
  if span and (span <= 0 or span > SPAN_MAX) then
    bad(what, 'must be above 0 seconds and at most ten years, not ' .. exact(span))
  end
end

-- Refuses a delay over a hundred years. Qless callers may give any.
local function check_delay(delay, is_qless)
  if delay > DELAY_MAX and not is_qless then
    bad('delay', 'must be at most a hundred years, not ' .. exact(delay) .. ' seconds')
  end
end

-- MessagePack by hand for what Lua's tables cannot hold: nil inside lists, and lists of packed items.

local NIL = '\192'

-- An array or a map of packed items.
local function packed_head(count, small, large)
  if count < 16 then return string.char(small + count) end
  return string.char(large + 1, floor(count / 16777216) % 256, floor(count / 65536) % 256,
    floor(count / 256) % 256, count % 256)
end

local function packed_array(parts)
  return packed_head(#parts, 144, 220) .. table.concat(parts)
end

-- Whether any of many keys exists.
local function any_exists(keys)
  for first = 1, #keys, ARGUMENTS_MAX do
    local last = first + ARGUMENTS_MAX - 1
    if last > #keys then last = #keys end
    if call('EXISTS', unpack(keys, first, last)) > 0 then return true end
  end
  return false
end

-- Fails with a text for the caller.
local function fail_with(text)
  error({ text = text })
end
