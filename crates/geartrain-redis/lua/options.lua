-- Options, as set and as numbers.

-- Above this file, the driver writes three tables from its table of options: option.listed and
-- option.unlisted, the defaults of those that Qless lists and of the others, and option.ranges(), a list of the
-- valid values of numeric options and whether they may have a queue, in the order of that table: where a name is
-- that of two options, the first one counts.

local OPTION_BYTES_MAX = 4160

function option.all()
  local chosen = cache.options
  if not chosen then
    chosen = {}
    local flat = call('HGETALL', key.config)
    for at = 1, #flat, 2 do chosen[flat[at]] = flat[at + 1] end
    cache.options = chosen
    cache.no_options = next(chosen) == nil
    cache.numbers = {}
    cache.holds, cache.places = {}, {}
    cache.history_max, cache.keep, cache.pop_context, cache.finish_context = nil, nil, nil, nil
  end
  return chosen
end

-- A numeric option. Text that is not a finite number, which Qless callers may set, counts as not set.
function option.number(name)
  local chosen = option.all()
  local number = cache.numbers[name]
  if number == nil then
    number = number_of(chosen[name]) or option.listed[name] or option.unlisted[name]
    cache.numbers[name] = number
  end
  return number
end

-- A numeric option as a count: rounded down, at least 0.
function option.count(name)
  local count = floor(option.number(name))
  return count > 0 and count or 0
end

-- A queue's own option, whose name may come first or last.
local function of_queue(queue, name)
  local chosen = option.all()
  if cache.no_options then return nil end
  return number_of(chosen[queue .. '-' .. name]) or number_of(chosen[name .. '-' .. queue])
end

-- How long a lock lasts in a queue.
function option.heartbeat(queue)
  local hold = cache.holds[queue]
  if not hold then
    hold = of_queue(queue, 'heartbeat') or option.number('heartbeat')
    cache.holds[queue] = hold
  end
  return hold
end

-- A queue's limit of locks, or nil.
function option.concurrency(queue)
  local max = cache.places[queue]
  if max == nil then
    max = of_queue(queue, 'max-concurrency')
    max = max and max > 0 and max or false
    cache.places[queue] = max
  end
  return max or nil
end

-- The range of an option, and whether it is known.
local function range_of(name)
  local ranges = option.ranges()
  for _, range in ipairs(ranges) do
    if range.global and range.name == name then return range, true end
  end
  if option.listed[name] then return nil, true end
  for _, range in ipairs(ranges) do
    local size = #range.name + 1
    local named = name:sub(-size) == '-' .. range.name or name:sub(1, size) == range.name .. '-'
    if range.queue and #name > size and named then return range, true end
  end
  return nil, false
end

-- Refuses an option that could not be read back; unless any is allowed, also an unknown option, and a value
-- outside its range.
function option.check(name, value, any)
  if #name == 0 or #name > OPTION_BYTES_MAX or name:find('%z') then
    bad('option', 'must have 1 to ' .. OPTION_BYTES_MAX .. ' bytes and no NUL')
  end
  if not value or any then return end
  local range, known = range_of(name)
  if not known then
    bad('option', name .. ' is not known; options of a queue are named like mail-heartbeat')
  end
  if not range then return end
  local number = number_of(value)
  if number and (number > 0 or range.zero and number == 0) and number <= range.max
    and (number % 1 == 0 or not range.whole) then return end
  bad('value', 'of ' .. name .. ' must be ' .. range.text .. ', not ' .. quote(value))
end

function option.get(name)
  local chosen = option.all()[name]
  if chosen then return chosen, true end
  return option.listed[name], false
end

-- Invalidates the cached options. If more jobs may run now, parked pops are woken.
local function changed(name)
  cache.options, cache.history_max, cache.keep, cache.pop_context, cache.finish_context = nil, nil, nil, nil,
    nil
  cache.holds, cache.places = {}, {}
  local queue = name:match('^(.+)%-max%-concurrency$') or name:match('^max%-concurrency%-(.+)$')
  if queue then out.ready[queue] = (out.ready[queue] or 0) + zset.read('ZCARD', keys_of(queue).work) end
end

function option.set(name, value, any)
  option.check(name, value, any)
  publish.log('{"option":' .. quote(name) .. ',"event":"config_set","value":' .. quote(value) .. '}')
  if publish.has_event_subscribers() then publish.event('ConfigSet', { option = name, value = value }) end
  call('HSET', key.config, name, value)
  changed(name)
end

function option.unset(name)
  option.check(name)
  publish.log('{"event":"config_unset","option":' .. quote(name) .. '}')
  if publish.has_event_subscribers() then publish.event('ConfigUnset', { option = name }) end
  call('HDEL', key.config, name)
  changed(name)
end
