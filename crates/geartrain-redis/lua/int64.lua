-- 64-bit integers, which a double cannot hold: stream and waiter numbers, which clients choose at random. As
-- text they are 16 hex digits.

local EXACT_MAX = 9007199254740992

-- A MessagePack reader like Redis's, except that 64-bit integers stay text. It is slow, and used only when
-- there is one.
local function reader(bytes)
  local at = 1
  local value
  local function number(count)
    local sum = 0
    for place = at, at + count - 1 do sum = sum * 256 + bytes:byte(place) end
    at = at + count
    return sum
  end
  local function text(count)
    at = at + count
    return bytes:sub(at - count, at - 1)
  end
  local function array(count)
    local list = {}
    for place = 1, count do list[place] = value() end
    return list
  end
  local function map(count)
    local entries = {}
    for _ = 1, count do
      local name = value()
      entries[name] = value()
    end
    return entries
  end
  local function large()
    local digits = bytes:sub(at, at + 7):gsub('.', function(byte) return string.format('%02x',
      byte:byte()) end)
    at = at + 8
    return digits
  end
  local sized = {
    [0xcc] = function() return number(1) end, [0xcd] = function() return number(2) end,
      [0xce] = function() return number(4) end,
    [0xcf] = large, [0xd9] = function() return text(number(1)) end,
      [0xda] = function() return text(number(2)) end,
    [0xdb] = function() return text(number(4)) end, [0xdc] = function() return array(number(2)) end,
    [0xdd] = function() return array(number(4)) end, [0xde] = function() return map(number(2)) end,
      [0xdf] = function() return map(number(4)) end,
    [0xc0] = function() return nil end, [0xc2] = function() return false end,
      [0xc3] = function() return true end,
    -- Other types do not occur here.
    [0xca] = function() return number(4) end, [0xcb] = function() return number(8) end,
      [0xd0] = function() return number(1) end,
    [0xd1] = function() return number(2) end, [0xd2] = function() return number(4) end,
      [0xd3] = function() return number(8) end,
  }
  value = function()
    local kind = number(1)
    if kind < 0x80 then return kind end
    if kind < 0x90 then return map(kind - 0x80) end
    if kind < 0xa0 then return array(kind - 0x90) end
    if kind < 0xc0 then return text(kind - 0xa0) end
    if kind >= 0xe0 then return kind - 256 end
    return sized[kind]()
  end
  return value()
end

-- The request decoded again, with 64-bit integers as text.
function int64.request()
  if not cache.large then cache.large = reader(cache.request) end
  return cache.large
end

-- 16 hex digits of a number, or of such text.
function int64.digits(number)
  if type(number) == 'string' then return number end
  return string.format('%016x', number)
end

-- Redis's library decodes the largest ones as negative.
function int64.is(number)
  return type(number) ~= 'number' or number < 0 or number >= EXACT_MAX
end

-- As MessagePack.
function int64.pack(digits)
  local high = tonumber(digits:sub(1, 8), 16)
  if high < 0x200000 then return pack(high * 4294967296 + tonumber(digits:sub(9), 16)) end
  return '\207' .. digits:gsub('..', function(byte) return string.char(tonumber(byte, 16)) end)
end

-- In decimal.
function int64.text(digits)
  local limbs = {}
  for place = 1, 4 do limbs[place] = tonumber(digits:sub(place * 4 - 3, place * 4), 16) end
  local text = ''
  repeat
    local rest, more = 0, false
    for place = 1, 4 do
      local part = rest * 65536 + limbs[place]
      limbs[place] = floor(part / 10000)
      rest = part % 10000
      more = more or limbs[place] > 0
    end
    text = (more and string.format('%04d', rest) or tostring(rest)) .. text
  until not more
  return text
end
