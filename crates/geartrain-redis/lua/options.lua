-- Options, as they were set and as the numbers that the rules go by.

-- Those that Qless lists, with their defaults.
option.listed = {
  application = 'qless', heartbeat = 60, ['grace-period'] = 10, ['stats-history'] = 30, ['histogram-history'] = 7,
  ['jobs-history-count'] = 50000, ['jobs-history'] = 604800,
}
-- The other numeric ones.
option.unlisted = { ['max-worker-age'] = 86400, ['max-job-history'] = 100, ['crashes-max'] = 3, ['results-bytes'] = 67108864 }

local OPTION_BYTES_MAX = 4160

function option.all()
  local chosen = known.options
  if not chosen then
    chosen = {}
    local flat = call('HGETALL', key.config)
    for at = 1, #flat, 2 do chosen[flat[at]] = flat[at + 1] end
    known.options = chosen
    known.no_options = next(chosen) == nil
    known.numbers = {}
    known.holds, known.places = {}, {}
    known.history_max, known.keep, known.counter, known.closing = nil, nil, nil, nil
  end
  return chosen
end

-- A numeric option. What a foreign script set to something else counts as not set.
function option.number(name)
  local chosen = option.all()
  local number = known.numbers[name]
  if number == nil then
    number = number_of(chosen[name]) or option.listed[name] or option.unlisted[name]
    known.numbers[name] = number
  end
  return number
end

-- The same as a count: a fraction is dropped, and negative is 0.
function option.count(name)
  local count = floor(option.number(name))
  return count > 0 and count or 0
end

-- One queue's own, whose name may come before or after.
local function of_queue(queue, name)
  local chosen = option.all()
  if known.no_options then return nil end
  return number_of(chosen[queue .. '-' .. name]) or number_of(chosen[name .. '-' .. queue])
end

-- How long a lock lasts in a queue.
function option.heartbeat(queue)
  local hold = known.holds[queue]
  if not hold then
    hold = of_queue(queue, 'heartbeat') or option.number('heartbeat')
    known.holds[queue] = hold
  end
  return hold
end

-- How many locks a queue may have; none for any number.
function option.concurrency(queue)
  local max = known.places[queue]
  if max == nil then
    max = of_queue(queue, 'max-concurrency')
    max = max and max > 0 and max or false
    known.places[queue] = max
  end
  return max or nil
end

local function is_numeric(name)
  if name ~= 'application' and (option.listed[name] or option.unlisted[name]) then return true end
  for _, about in ipairs({ 'heartbeat', 'max-concurrency' }) do
    if name:sub(-#about - 1) == '-' .. about or name:sub(1, #about + 1) == about .. '-' then return true end
  end
  return false
end

-- Refuses an option that could not be read back.
function option.check(name, value)
  if #name == 0 or #name > OPTION_BYTES_MAX or name:find('%z') then
    bad('option', 'must have 1 to ' .. OPTION_BYTES_MAX .. ' bytes and no NUL')
  end
  if value and is_numeric(name) and not number_of(value) then
    bad('value', 'of ' .. name .. ' must be a finite number, not ' .. value)
  end
end

function option.get(name)
  local chosen = option.all()[name]
  if chosen then return chosen, true end
  return option.listed[name], false
end

-- What was read of options is read again. Where more jobs may run now, whoever waits for them is woken.
local function changed(name)
  known.options, known.history_max, known.keep, known.counter, known.closing = nil, nil, nil, nil, nil
  known.holds, known.places = {}, {}
  local queue = name:match('^(.+)%-max%-concurrency$') or name:match('^max%-concurrency%-(.+)$')
  if queue then out.woken[queue] = (out.woken[queue] or 0) + zset.ask('ZCARD', keys_of(queue).work) end
end

function option.set(name, value)
  option.check(name, value)
  say.log('{"option":' .. quote(name) .. ',"event":"config_set","value":' .. quote(value) .. '}')
  if say.listening() then say.event('ConfigSet', { option = name, value = value }) end
  call('HSET', key.config, name, value)
  changed(name)
end

function option.unset(name)
  option.check(name)
  say.log('{"event":"config_unset","option":' .. quote(name) .. '}')
  if say.listening() then say.event('ConfigUnset', { option = name }) end
  call('HDEL', key.config, name)
  changed(name)
end
