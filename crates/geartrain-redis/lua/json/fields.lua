-- The fields of an operation: each reader takes them and a name, and returns the value, or nil if it is absent.
-- Errors name the field, as those of a server do.

local COUNT_MAX = 100000
local RESULT_FOR = 90000 -- how long a result is kept unless the put says how long
local UNITS = { { 'w', 604800 }, { 'd', 86400 }, { 'h', 3600 }, { 'm', 60 }, { 's', 1 }, { 'ms', 0.001 } }
local A_TIME = 'a time like "2026-04-01T12:00:00Z", or a number of seconds since the epoch'
local A_DURATION = 'a duration like "10m", or a number of seconds'
local NAME_BYTES_MAX, UNIQUE_BYTES_MAX = 512, 4095
local WHOLE_MAX = 4294967295

local function wrong(name, must_be, raw)
  json.bad('`' .. name .. '` must be ' .. must_be .. ', not ' .. json.excerpt(raw))
end

-- Refuses fields that are not among these.
function fields.allow(keys, names)
  for _, name in ipairs(keys) do
    if not contains(names, name) then
      local known = #names > 0 and '; the keys are ' .. table.concat(names, ', ') or '; there are none here'
      json.fail('unknown-field', 'there is no key `' .. json.excerpt(name) .. '`' .. known)
    end
  end
end

-- The JSON of a field; null counts as absent.
function fields.raw(given, name)
  local raw = given[name]
  return raw ~= 'null' and raw or nil
end

function fields.text(given, name)
  local raw = fields.raw(given, name)
  if not raw then return nil end
  return json.string(raw) or wrong(name, 'a text in quotes', raw)
end

function fields.flag(given, name)
  local raw = fields.raw(given, name)
  if raw and raw ~= 'true' and raw ~= 'false' then wrong(name, 'true or false', raw) end
  return raw == 'true'
end

-- The number of a JSON number, or nil.
local function number_in(raw)
  local number = raw:find('^[-%d]') and tonumber(raw)
  return number and number < huge and number > -huge and number or nil
end

-- The same if it is whole: JSON may write 2 as 2.0.
function fields.integer_in(raw)
  local number = number_in(raw)
  return number and number % 1 == 0 and number or nil
end

function fields.number(given, name)
  local raw = fields.raw(given, name)
  if not raw then return nil end
  return number_in(raw) or wrong(name, 'a number', raw)
end

-- A whole number of 0 or more.
function fields.whole(given, name, max)
  local raw = fields.raw(given, name)
  if not raw then return nil end
  local number = fields.integer_in(raw)
  if not number or number < 0 or number > (max or WHOLE_MAX) then wrong(name, 'a whole number of 0 or more', raw) end
  return number
end

-- How many jobs at most.
function fields.count(given, name, default)
  local raw = fields.raw(given, name)
  if not raw then return default end
  local number = fields.integer_in(raw) or wrong(name, 'a whole number of 0 or more', raw)
  if number < 0 or number > COUNT_MAX then
    json.bad('`' .. name .. '`: a count is a whole number from 0 to ' .. COUNT_MAX .. ', not ' .. raw)
  end
  return number
end

-- Checks a name of a kind, such as a queue.
local function checked(kind, text, max)
  max = max or NAME_BYTES_MAX
  if text == '' then json.bad('a ' .. kind .. ' needs at least one byte') end
  if #text > max then
    json.bad('a ' .. kind .. ' has at most ' .. max .. ' bytes, this one has ' .. #text)
  end
  if text:find('%z') then json.bad('a ' .. kind .. ' must not hold a NUL byte') end
  return text
end
fields.checked = checked

function fields.name(given, name, kind)
  local text = fields.text(given, name)
  return text and checked(kind or name, text, kind == 'group' and 4160 or nil)
end

function fields.required(given, name, kind)
  return fields.name(given, name, kind) or json.missing(name)
end

-- The texts of a list.
local function texts(given, name)
  local raw = fields.raw(given, name)
  if not raw then return nil end
  local all = {}
  for at, one in ipairs(raw:find('^%[') and json.list(raw) or { '' }) do
    all[at] = json.string(one) or wrong(name, 'a list of texts like ["a", "b"]', raw)
  end
  return all
end

function fields.names(given, name, kind)
  local all = texts(given, name)
  for _, text in ipairs(all or {}) do checked(kind, text) end
  return all
end

function fields.required_names(given, name, kind)
  return fields.names(given, name, kind) or json.missing(name)
end

-- Payloads --------------------------------------------------------------------------------------------------

-- The text in `{"$bytes": "<base64>"}`, or nil.
local function wrapped(raw)
  if not raw:find('^{[%s]*"') then return nil end
  local keys, values = json.object(raw, '{}')
  return #keys == 1 and values['$bytes'] and json.string(values['$bytes']) or nil
end

local function wrap(bytes)
  return '{"$bytes":"' .. json.base64(bytes) .. '"}'
end

-- A payload as it is stored: JSON as it is, other bytes wrapped.
function fields.payload(given, name)
  local raw = fields.raw(given, name)
  if not raw then return nil end
  local bytes
  if raw:find('^"') then
    bytes = json.string(raw)
    if not bytes then
      json.bad('the payload has half of a surrogate pair (\\uD800 to \\uDFFF), which is no text')
    end
  else
    local coded = wrapped(raw)
    if not coded then return raw end
    bytes = json.from_base64(coded)
    if not bytes then json.bad("the payload's $bytes are not base64") end
  end
  -- Text that is JSON is stored as JSON, unless it looks like wrapped bytes.
  if json.is_json(bytes) and not bytes:find('^{"$bytes":"') then return bytes end
  return wrap(bytes)
end

-- The bytes of a text or of wrapped bytes, or nil.
local function bytes_in(raw)
  local text = json.string(raw)
  if text then return text end
  local coded = wrapped(raw)
  return coded and json.from_base64(coded)
end

function fields.unique(given)
  local raw = fields.raw(given, 'unique')
  if not raw then return nil end
  local unique = bytes_in(raw) or wrong('unique', 'a text in quotes or {"$bytes":"<base64>"}', raw)
  if unique == '' then json.bad('unique key needs at least one byte') end
  if #unique > UNIQUE_BYTES_MAX then
    json.bad('unique key has at most ' .. UNIQUE_BYTES_MAX .. ' bytes, this one has ' .. #unique)
  end
  return unique
end

-- Bytes as JSON.
function fields.show_bytes(bytes)
  return json.not_utf8(bytes) and wrap(bytes) or json.text(bytes)
end

-- A stored payload as JSON.
function fields.show_payload(stored)
  local coded = stored:match('^{"$bytes":"([%w+/=]*)"}$')
  local bytes = coded and json.from_base64(coded)
  -- Line breaks in JSON are between tokens, and a document is on one line.
  if not bytes then return (stored:gsub('[\r\n]', ' ')) end
  return json.is_json(bytes) and bytes or fields.show_bytes(bytes)
end

-- Times and durations ---------------------------------------------------------------------------------------

-- What a server would read as a phrase.
local function refuse_phrase(name, text, examples)
  json.fail('unsupported', '`' .. name .. '`: ' .. quote(json.excerpt(text)) .. ' is not ' .. examples
    .. ', and a Redis reads no phrases')
end

-- The seconds of a duration such as 90, 1h30m or 250ms, or nil.
local function duration_of(text)
  if text:find('^[%d.]+$') then return tonumber(text) end
  local at, unit, seconds = 1, 0, 0
  while at <= #text do
    local number, letters, behind = text:match('^([%d.]+)(%a+)()', at)
    number = tonumber(number or nil)
    if not number then return nil end
    repeat
      unit = unit + 1
      if not UNITS[unit] then return nil end
    until UNITS[unit][1] == letters
    seconds, at = seconds + number * UNITS[unit][2], behind
  end
  return text ~= '' and seconds or nil
end

-- A delay in seconds.
function fields.delay(given, name, must_be)
  local raw = fields.raw(given, name)
  if not raw then return nil end
  local seconds, text = number_in(raw), json.string(raw)
  if not seconds and not text then
    wrong(name, must_be or 'a duration like "1h", or a number of seconds', raw)
  end
  if text then
    seconds = duration_of(text)
    if not seconds then refuse_phrase(name, text, 'a duration like 90, 90s, 1h30m or 250ms') end
    if seconds > DELAY_MAX then
      json.bad('`' .. name .. '`: ' .. quote(text) .. ' is not a duration: it is longer than a hundred years')
    end
  elseif seconds < 0 or seconds > DELAY_MAX then
    json.bad('`' .. name .. '`: it must be from 0 seconds to a hundred years')
  end
  return seconds
end

-- A duration above zero.
function fields.span(given, name, must_be)
  local seconds = fields.delay(given, name, must_be or A_DURATION)
  if seconds and (seconds <= 0 or seconds > SPAN_MAX) then
    json.bad('`' .. name .. '`: it must be more than 0 and at most ten years')
  end
  return seconds
end

function fields.keep_result(given)
  local raw = fields.raw(given, 'keep_result')
  if raw == 'true' then return RESULT_FOR end
  if raw == 'false' then return nil end
  return fields.span(given, 'keep_result', 'true, a duration like "2h", or a number of seconds')
end

-- Days from the epoch to a date, or nil if there is no such date.
local function days_to(year, month, day)
  local leap = year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)
  local lengths = { 31, leap and 29 or 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 }
  if not lengths[month] or day < 1 or day > lengths[month] then return nil end
  local days = (year - 1970) * 365 + floor((year - 1969) / 4) - floor((year - 1901) / 100)
    + floor((year - 1601) / 400) + day - 1
  for at = 1, month - 1 do days = days + lengths[at] end
  return days
end

-- Seconds since the epoch of a time such as 2026-04-01T12:00:00Z, or nil.
local function moment_of(text)
  if text:find('^[-%d.]+$') then return tonumber(text) end
  local year, month, day, hour, minute, rest = text:match('^(%d%d%d%d)-(%d%d)-(%d%d)[Tt ](%d%d):(%d%d)(.*)$')
  if not year then return nil end
  local second, zone = rest:match('^:(%d%d%.?%d*)(.*)$')
  if not second then second, zone = '0', rest end
  local days = days_to(tonumber(year), tonumber(month), tonumber(day))
  hour, minute, second = tonumber(hour), tonumber(minute), tonumber(second)
  if not days or not second or hour > 23 or minute > 59 or second >= 61 then return nil end
  local offset
  if zone:find('^[Zz]$') then
    offset = 0
  else
    local sign, hours, minutes = zone:match('^([+-])(%d%d):?(%d%d)$')
    if not sign then return nil end
    offset = (tonumber(hours) * 60 + tonumber(minutes)) * (sign == '-' and -60 or 60)
  end
  -- A leap second is the second before it.
  return days * 86400 + hour * 3600 + minute * 60 + math.min(second, 59.999999999) - offset
end

-- A time. `ahead` also reads a duration from now, with its unit.
function fields.time(given, name, ahead)
  local raw = fields.raw(given, name)
  if not raw then return nil end
  local at, text = number_in(raw), json.string(raw)
  if not at and not text then wrong(name, A_TIME, raw) end
  if text then
    at = ahead and text:find('%l$') and duration_of(text) and now + duration_of(text) or moment_of(text)
    if not at then refuse_phrase(name, text, 'a time like 2026-04-01T12:00:00Z') end
  end
  if at - now > DELAY_MAX then
    json.bad('`' .. name .. '`: it is more than a hundred years ahead: a number is in seconds since the epoch, '
      .. 'not in milliseconds')
  end
  return at
end

-- The last moment of which the day is shown: the year 9998 ends.
local DAY_MAX = 253370764799

-- The first second of a day, in UTC; today by default.
function fields.day(given, name)
  local raw = fields.raw(given, name)
  if not raw then return stats.day(now) end
  local text = json.string(raw) or raw
  local at
  if text == 'today' then
    at = now
  elseif text == 'yesterday' then
    at = now - 86400
  else
    at = moment_of(text:find('^%d%d%d%d%-%d%d%-%d%d$') and text .. 'T00:00:00Z' or text)
  end
  if not at or at < 0 or at > DAY_MAX then
    json.bad('`' .. name .. '`: ' .. quote(json.excerpt(text))
      .. ' is not a day: write it like 2026-04-01, or today, or yesterday')
  end
  return stats.day(at)
end

-- The date of a time; of one whose year has not four digits the seconds, as on a server.
function fields.show_day(at)
  local days = floor(at / 86400)
  if days < days_to(0, 1, 1) or days > days_to(9999, 12, 31) then return string.format('%.0f', at) end
  local year = 1969 + floor(days / 365.2425)
  while days_to(year + 1, 1, 1) <= days do year = year + 1 end
  local month = 12
  while days_to(year, month, 1) > days do month = month - 1 end
  return string.format('%04d-%02d-%02d', year, month, days - days_to(year, month, 1) + 1)
end

-- Backoffs and rates ----------------------------------------------------------------------------------------

-- A backoff such as 30s, 10s..1h or 10sx3..1h+-0.2.
function fields.backoff(given)
  local text = fields.text(given, 'backoff')
  if not text then return nil end
  local function refuse(why)
    json.bad('`backoff`: ' .. quote(text) .. ' is not a backoff: '
      .. (why or 'write it like 30s, 10s..1h or 10sx3..1h+-0.2'))
  end
  local function plain(number)
    return number:find('^[%d.]+$') and tonumber(number) or refuse()
  end
  local waits, jitter = text:match('^(.-)%+%-(.*)$')
  jitter = jitter and plain(jitter) or 0
  waits = waits or text
  local first, max = waits:match('^(.-)%.%.(.*)$')
  max = max and (duration_of(max) or refuse())
  local begin, factor = (first or waits):match('^(.-)x(.*)$')
  if begin and not max then refuse('a growing delay needs a maximum, as in 10sx3..1h') end
  factor = factor and plain(factor) or max and 2 or 1
  first = duration_of(begin or first or waits) or refuse()
  local function out_of_range(why) json.bad('`backoff`: backoff must ' .. why) end
  if first > SPAN_MAX then out_of_range('begin with 0 seconds to ten years, not ' .. exact(first)) end
  if factor < 1 or factor > 1000000 then
    out_of_range('grow by a factor of 1 to 1,000,000, not ' .. exact(factor))
  end
  max = max or first
  if max < first or max > SPAN_MAX then
    out_of_range('end with ' .. exact(first) .. ' seconds to ten years, not ' .. exact(max))
  end
  if jitter > 1 then out_of_range('vary by 0 to 1 times itself, not ' .. exact(jitter)) end
  return { first, factor, max, jitter }
end

-- A rate such as 10/s, 100/1m or 100/1m+20.
function fields.rate(given)
  local text = fields.text(given, 'rate')
  if not text then return nil end
  local count, span, burst = text:match('^(%d+)/([^+]*)%+?(%d*)$')
  local per = span and duration_of((span:find('^%a') and '1' or '') .. span)
  count, burst = tonumber(count or nil), burst ~= '' and tonumber(burst or nil) or 1
  if not per or text:find('%+$') or count > WHOLE_MAX or burst > WHOLE_MAX then
    json.bad('`rate`: ' .. quote(text) .. ' is not a rate: write it like 10/s, 100/1m or 100/1m+20')
  end
  if count == 0 or burst == 0 then
    json.bad('`rate`: rate must let at least one job start; to let none start, pause the queue')
  end
  if per <= 0 or per > SPAN_MAX then
    json.bad('`rate`: rate must be for a time of up to ten years, not ' .. exact(per) .. ' seconds')
  end
  return { count, per, burst }
end
