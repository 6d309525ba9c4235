-- JSON as text: a scanner that finds the values of an object without decoding them, because cjson would round
-- the digits of payloads, and an encoder for documents. Slices of the JSON library are in `json`.

local find, sub, byte, char = string.find, string.sub, string.byte, string.char
local EXCERPT_CHARS = 40
local FIELDS_MAX = 100 -- of an object; they are compared in pairs

-- Ends the operation with an error of its own: a code, a sentence, and what to do.
function json.fail(code, message, help)
  error({ code = code, message = message, help = help })
end

function json.bad(message)
  json.fail('bad-argument', message)
end

function json.missing(name)
  json.fail('missing-field', '`' .. name .. '` is missing')
end

-- The beginning of a text, for errors.
function json.excerpt(text)
  local at, chars = 1, 0
  while at <= #text and chars < EXCERPT_CHARS do
    at = find(text, '[^\128-\191]', at + 1) or #text + 1
    chars = chars + 1
  end
  return at <= #text and sub(text, 1, at - 1) .. '…' or text
end

local CHARACTERS = { '^[\194-\223][\128-\191]', '^\224[\160-\191][\128-\191]',
  '^[\225-\236\238\239][\128-\191][\128-\191]', '^\237[\128-\159][\128-\191]',
  '^\240[\144-\191][\128-\191][\128-\191]', '^[\241-\243][\128-\191][\128-\191][\128-\191]',
  '^\244[\128-\143][\128-\191][\128-\191]' }

-- The first byte that is not UTF-8, or nil.
function json.not_utf8(text)
  local at = find(text, '[\128-\255]')
  while at do
    local first, last
    for _, character in ipairs(CHARACTERS) do
      first, last = find(text, character, at)
      if first then break end
    end
    if not first then return at end
    at = find(text, '[\128-\255]', last + 1)
  end
  return nil
end

-- Scanning --------------------------------------------------------------------------------------------------

local function skip_blanks(text, at)
  return find(text, '[^ \t\r\n]', at) or #text + 1
end

local function broken(text, at)
  if at > #text then
    json.fail('bad-json', 'its JSON is cut off: a quote, a bracket or a brace is missing at the end')
  end
  local _, column = sub(text, 1, at):gsub('[^\128-\191]', '')
  json.fail('bad-json', 'it is not JSON from column ' .. column .. ' on: ' .. json.excerpt(sub(text, at)))
end

-- The position behind the string that begins at a position.
local function skip_string(text, at)
  at = at + 1
  while true do
    at = find(text, '["\\%z\1-\31]', at)
    if not at then broken(text, #text + 1) end
    local found = byte(text, at)
    if found == 34 then return at + 1 end
    if found ~= 92 then broken(text, at) end
    if find(text, '^["\\/bfnrt]', at + 1) then
      at = at + 2
    elseif find(text, '^u%x%x%x%x', at + 1) then
      at = at + 6
    else
      broken(text, at + 1 > #text and #text + 1 or at)
    end
  end
end

local function skip_scalar(text, at)
  local first = sub(text, at, at)
  if first == '"' then return skip_string(text, at) end
  for _, word in ipairs({ 'null', 'true', 'false' }) do
    if sub(text, at, at + #word - 1) == word then return at + #word end
  end
  local _, last = find(text, '^-?0', at)
  if not last then _, last = find(text, '^-?[1-9]%d*', at) end
  if not last then broken(text, at) end
  local _, fraction = find(text, '^%.%d+', last + 1)
  last = fraction or last
  local _, exponent = find(text, '^[eE][+-]?%d+', last + 1)
  last = exponent or last
  if find(text, '^[%.eE%d]', last + 1) then broken(text, last + 1) end
  return last + 1
end

-- Behind a key and its colon.
local function skip_key(text, at)
  at = skip_blanks(text, at)
  if byte(text, at) ~= 34 then broken(text, at) end
  at = skip_blanks(text, skip_string(text, at))
  if byte(text, at) ~= 58 then broken(text, at) end
  return at + 1
end

-- The position behind the value that begins at a position. Not recursive, so that no nesting is too deep.
local function skip_value(text, at)
  local closers, depth = {}, 0
  while true do
    at = skip_blanks(text, at)
    local first, opened = byte(text, at), false
    if first == 123 or first == 91 then
      local close = first == 123 and 125 or 93
      local inside = skip_blanks(text, at + 1)
      if byte(text, inside) == close then
        at = inside + 1
      else
        depth = depth + 1
        closers[depth] = close
        at = close == 125 and skip_key(text, inside) or inside
        opened = true
      end
    else
      at = skip_scalar(text, at)
    end
    while not opened do
      if depth == 0 then return at end
      at = skip_blanks(text, at)
      local found = byte(text, at)
      if found == 44 then
        at = closers[depth] == 125 and skip_key(text, at + 1) or at + 1
        break
      end
      if found ~= closers[depth] then broken(text, at) end
      depth, at = depth - 1, at + 1
    end
  end
end

-- Whether a text is one JSON value.
function json.is_json(text)
  if json.not_utf8(text) then return false end
  local scanned, at = pcall(skip_value, text, 1)
  return scanned and skip_blanks(text, at) > #text
end

-- The decoded text of a JSON string, or nil if it is none or has half of a surrogate pair.
function json.string(raw)
  if byte(raw) ~= 34 then return nil end
  if not find(raw, '\\', 1, true) then return sub(raw, 2, -2) end
  local decoded, list = pcall(cjson.decode, '[' .. raw .. ']')
  local text = decoded and list[1]
  return text and not json.not_utf8(text) and text or nil
end

-- The raw values of a list.
function json.list(raw)
  local values, at = {}, skip_blanks(raw, 2)
  if byte(raw, at) == 93 then return values end
  while true do
    at = skip_blanks(raw, at)
    local behind = skip_value(raw, at)
    values[#values + 1] = sub(raw, at, behind - 1)
    at = skip_blanks(raw, behind)
    if byte(raw, at) == 93 then return values end
    if byte(raw, at) ~= 44 then broken(raw, at) end
    at = at + 1
  end
end

-- The keys of an object in order, and their raw values.
local function members(text, at)
  local keys, values = {}, {}
  at = skip_blanks(text, at + 1)
  if byte(text, at) == 125 then return keys, values, at + 1 end
  while true do
    at = skip_blanks(text, at)
    if byte(text, at) ~= 34 then broken(text, at) end
    local behind = skip_string(text, at)
    local name = json.string(sub(text, at, behind - 1))
    if not name then broken(text, at) end
    local value = skip_blanks(text, skip_key(text, at))
    behind = skip_value(text, value)
    if #keys == FIELDS_MAX then json.fail('bad-json', 'it has more than ' .. FIELDS_MAX .. ' keys') end
    if values[name] then
      json.fail('repeated-field', '`' .. json.excerpt(name) .. '` is there twice')
    end
    keys[#keys + 1], values[name] = name, sub(text, value, behind - 1)
    at = skip_blanks(text, behind)
    if byte(text, at) == 125 then return keys, values, at + 1 end
    if byte(text, at) ~= 44 then broken(text, at) end
    at = at + 1
  end
end

-- Parses an object that looks like `example`.
function json.object(text, example)
  local at = skip_blanks(text, 1)
  if byte(text, at) ~= 123 then json.fail('bad-json', 'it is not a JSON object like ' .. example) end
  -- First the whole text, so that an error in it counts before one about its keys.
  local behind = skip_blanks(text, skip_value(text, at))
  if behind <= #text then broken(text, behind) end
  return members(text, at)
end

-- Parses the list of a batch.
function json.batch(text)
  local at = skip_blanks(text, 1)
  local behind = skip_blanks(text, skip_value(text, at))
  if behind <= #text then broken(text, behind) end
  return json.list(sub(text, at))
end

-- Base64 ----------------------------------------------------------------------------------------------------

local DIGITS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'
local value_of = {}
for at = 1, 64 do value_of[byte(DIGITS, at)] = at - 1 end

local function digit(number)
  return sub(DIGITS, number + 1, number + 1)
end

function json.base64(bytes)
  local coded = bytes:gsub('..?.?', function(three)
    local one, two, last = byte(three, 1, 3)
    local number = one * 65536 + (two or 0) * 256 + (last or 0)
    return digit(floor(number / 262144)) .. digit(floor(number / 4096) % 64)
      .. (two and digit(floor(number / 64) % 64) or '=') .. (last and digit(number % 64) or '=')
  end)
  return coded
end

-- The bytes, or nil if the text is not base64.
function json.from_base64(text)
  if #text % 4 ~= 0 or not find(text, '^[%w+/]*=?=?$') then return nil end
  local padding = #text - #text:gsub('=', '')
  local bytes = text:gsub('=', 'A'):gsub('....', function(four)
    local number = 0
    for at = 1, 4 do number = number * 64 + value_of[byte(four, at)] end
    return char(floor(number / 65536), floor(number / 256) % 256, number % 256)
  end)
  return sub(bytes, 1, #bytes - padding)
end

-- Documents -------------------------------------------------------------------------------------------------

-- A text; nil is null.
function json.text(text)
  if text == nil then return 'null' end
  return (cjson.encode(text):gsub('\\/', '/'))
end

-- A number with as few digits as tell it apart from others; nil is null.
function json.number(number)
  if number == nil then return 'null' end
  if number % 1 == 0 and math.abs(number) <= 9007199254740992 then return string.format('%.0f', number) end
  for _, format in ipairs({ '%.15g', '%.16g', '%.17g' }) do
    local text = string.format(format, number)
    if tonumber(text) == number then return text end
  end
end

function json.flag(flag)
  return flag and 'true' or 'false'
end

-- A document of keys and JSON values in turn; a value that is nil is null.
function json.document(...)
  local given, parts, at = { ... }, {}, 1
  while given[at] do
    parts[#parts + 1] = '"' .. given[at] .. '":' .. (given[at + 1] or 'null')
    at = at + 2
  end
  return '{' .. table.concat(parts, ',') .. '}'
end

-- A list of JSON values; `show` makes them from the members.
function json.array(list, show)
  local parts = {}
  for at = 1, #list do parts[at] = show and show(list[at]) or list[at] end
  return '[' .. table.concat(parts, ',') .. ']'
end

function json.texts(list)
  return json.array(list, json.text)
end
