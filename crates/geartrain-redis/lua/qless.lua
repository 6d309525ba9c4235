-- The Qless API: text in, JSON out, and Qless's error messages.

local NAME_BYTES_MAX = 512
local GROUP_BYTES_MAX = 4160
local COUNT_MAX = 100000
local SHOWN_BYTES_MAX = 1024
local JSON_DEPTH_MAX = 1000
-- log entries are encoded again inside documents inside lists, which may have 1,000 levels
local LOG_DEPTH_MAX = 900
local ODD_SHOWN_MAX = 20

local function need(value, text)
  if value == nil or value == false then fail_with(text) end
  return value
end

-- An argument as error messages show it.
local function shown(argument)
  if not argument then return 'nil' end
  return #argument > SHOWN_BYTES_MAX and argument:sub(1, SHOWN_BYTES_MAX) or argument
end

-- A finite number, or an error that ends with the actual text. -0 becomes 0.
local function need_number(value, text)
  return (number_of(value) or fail_with(text .. shown(value))) + 0
end

-- A whole number that must fit in 32 bits.
local function need_whole(value, text, what)
  local number = need_number(value, text)
  if number < 0 or number % 1 ~= 0 or number > 4294967295 then
    fail_with(what .. ' must be a whole number that is not negative and fits 32 bits, not ' .. shown(value))
  end
  return number
end

-- A count.
local function need_count(value, text)
  local number = need_number(value, text)
  if number < 0 or number % 1 ~= 0 or number > COUNT_MAX then
    fail_with('a count is a whole number from 0 to ' .. COUNT_MAX .. ', not ' .. shown(value))
  end
  return number
end

-- An offset.
local function need_offset(value, text)
  local number = need_number(value, text)
  if number < 0 or number % 1 ~= 0 then
    fail_with('an offset is a whole number that is not negative, not ' .. shown(value))
  end
  return number < OFFSET_MAX and number or OFFSET_MAX
end

-- Whether a text has a number without digits before or after its point. The library accepts those.
local function lacks_digits(text)
  return text:find('%d%.%D') or text:find('%d%.$') or text:find('%-%.')
end

-- Decodes JSON, with the library's error if it cannot. What JSON cannot express, such as NaN, is refused;
-- that takes an instance with our own settings, because other scripts share the default one.
local function decode(text, depth)
  local strict = cjson.new()
  strict.decode_invalid_numbers(false)
  strict.decode_max_depth(depth or JSON_DEPTH_MAX)
  local read, value = pcall(strict.decode, text)
  if not read then fail_with((tostring(value):gsub('^user_script:%d+: ', ''))) end
  if lacks_digits(text) and lacks_digits((text:gsub('\\.', ''):gsub('"[^"]*"', ''))) then
    fail_with('Expected a digit on both sides of a point')
  end
  return value
end

-- Decodes JSON and encodes it again, as Qless does with the data of a heartbeat or a failure.
local function rewritten(text, depth)
  local value = decode(text, depth)
  local written, again = pcall(cjson.encode, value)
  if not written then fail_with((tostring(again):gsub('^user_script:%d+: ', ''))) end
  return again, value
end

-- Whether a text is UTF-8. Native clients could not decode other names, nor pop from a queue with such a job.
local function is_utf8(text)
  if not text:find('[\128-\255]') then return true end
  for _, sequence in ipairs({ '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]',
    '[\225-\236\238\239][\128-\191][\128-\191]',
    '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]',
      '[\241-\243][\128-\191][\128-\191][\128-\191]',
    '\244[\128-\143][\128-\191][\128-\191]' }) do
    text = text:gsub(sequence, ' ')
  end
  return not text:find('[\128-\255]')
end

local function need_utf8(text, what)
  if not is_utf8(text) then fail_with(what .. ' must be UTF-8') end
  return text
end

local function need_name(name, missing, what, max)
  need(name, missing)
  max = max or NAME_BYTES_MAX
  need_utf8(name, 'a ' .. what)
  if #name == 0 then fail_with('a ' .. what .. ' needs at least one byte') end
  if #name > max then
    fail_with('a ' .. what .. ' has at most ' .. max .. ' bytes, this one has ' .. #name)
  end
  if name:find('%z') then fail_with('a ' .. what .. ' must not hold a NUL byte') end
  return name
end

local function need_all(names, what)
  for _, name in ipairs(names) do need_name(name, nil, what) end
  return names
end

-- A JSON list of names. Numbers become text.
local function need_names(text, option, what)
  local names = decode(text)
  -- Qless writes an empty list as an object without fields.
  if type(names) ~= 'table' or (#names == 0 and next(names) ~= nil) then
    fail_with(option .. ' must be a JSON list of strings')
  end
  for place, name in ipairs(names) do
    if type(name) == 'number' and number_of(name) then names[place] = tostring(name)
    elseif type(name) ~= 'string' then fail_with(option .. ' must be a JSON list of strings') end
  end
  return need_all(names, what)
end

-- Options after the other arguments, names and values. The last value of a name wins.
local function options_from(arguments, first)
  if (#arguments - first + 1) % 2 ~= 0 then
    local words = {}
    for at = first, #arguments do
      if #words < ODD_SHOWN_MAX then words[#words + 1] = shown(arguments[at]) end
    end
    fail_with('Odd number of additional args: ' .. table.concat(words, ' '))
  end
  local found = {}
  for at = first, #arguments, 2 do found[arguments[at]] = arguments[at + 1] end
  return found
end

-- Refuses throttles, which are reqless's: an empty list asks for nothing, and its clients always send one.
local THROTTLES = "throttles are reqless's, and geartrain has none; the option <queue>-max-concurrency "
  .. 'limits how many jobs of a queue run at once'

local function refuse_throttles(options, verb)
  if not options.throttles then return end
  local read, throttles = pcall(decode, options.throttles)
  if not read or type(throttles) ~= 'table' or next(throttles) ~= nil then
    fail_with(verb .. ': option "throttles" is not supported: ' .. THROTTLES)
  end
end

-- The arguments from an index on.
local function from(arguments, first)
  local rest = {}
  for at = first, #arguments do rest[at - first + 1] = arguments[at] end
  return rest
end

-- Documents -------------------------------------------------------------------------------------------------

-- A list as Qless encodes it: an empty one is an object, which is what the encoder makes of an empty table.
local function history_of(jid)
  local history = {}
  for _, text in ipairs(read.history(jid)) do
    local entry = cjson.decode(text)
    -- Earlier versions wrote these two, which Qless does not know. A logged entry starts with a blank.
    local is_ours = (entry[2] == 'handed-back' or entry[2] == 'crashed') and not text:find('^%[[^,]*, ')
    if not is_ours then
      local shown = type(entry[3]) == 'table' and entry[3] or {}
      shown.what, shown.when = entry[2], entry[1]
      history[#history + 1] = shown
    end
  end
  return history
end

local function document(jid)
  local of = job.load(jid, true)
  if not of then return nil end
  local tags, failure, parent = job.more(of, 'tags', 'failure', 'spawned_from_jid')
  return {
    jid = jid, klass = of.klass, state = of.state, queue = of.queue, worker = of.worker,
    tracked = publish.is_tracked(jid), priority = tonumber(of.priority) or 0,
    expires = tonumber(of.expires) or 0, retries = tonumber(of.retries) or 0,
    remaining = floor(tonumber(of.remaining) or 0), data = of.data or '', tags = cjson.decode(tags or '{}'),
    history = history_of(jid), failure = cjson.decode(failure or '{}'), spawned_from_jid = parent,
    dependents = job.dependents(jid), dependencies = job.dependencies(jid),
  }
end

local function documents(jids)
  local all = {}
  for _, jid in ipairs(jids) do all[#all + 1] = document(jid) end
  return cjson.encode(all)
end

-- Error messages of Qless, by command and kind of refusal ---------------------------------------------------

local says = {
  requeue = { NoSuchJob = 'Requeue(): Job <jid> does not exist' },
  heartbeat = {
    NoSuchJob = 'Heartbeat(): Job <jid> does not exist',
      NotRunning = 'Heartbeat(): Job <jid> not currently running: <qless>',
    HeldByAnother = 'Heartbeat(): Job <jid> given out to another worker: <holder>',
  },
  complete = {
    NoSuchJob = 'Complete(): Job <jid> does not exist',
      NotRunning = 'Complete(): Job <jid> is not currently running: <qless>',
    HeldByAnother = 'Complete(): Job <jid> has been handed out to another worker: <holder>',
    WrongQueue = 'Complete(): Job <jid> running in another queue: <queue>',
  },
  fail = {
    NoSuchJob = 'Fail(): Job <jid>does not exist',
      NotRunning = 'Fail(): Job <jid>not currently running: <qless>',
    HeldByAnother = 'Fail(): Job <jid> running with another worker: <holder>',
  },
  retry = {
    NoSuchJob = 'Retry(): Job <jid> does not exist',
      NotRunning = 'Retry(): Job <jid> is not currently running: <qless>',
    HeldByAnother = 'Retry(): Job <jid> has been given to another worker: <holder>',
    WrongQueue = 'Retry(): Job <jid> running in another queue: <queue>',
  },
  timeout = { NoSuchJob = 'Timeout(): Job <jid> does not exist',
    NotRunning = 'Timeout(): Job <jid> not running' },
  cancel = { IsDependency = 'Cancel(): <jid> is a dependency of <dependent> but is not mentioned to be canceled' },
  priority = { NoSuchJob = 'Priority(): Job <jid> does not exist' },
  depends = {
    NoSuchJob = 'Depends(): Job <jid> not in the depends state: false',
      NotInDepends = 'Depends(): Job <jid> not in the depends state: <qless>',
  },
  log = { NoSuchJob = 'Log(): Job <jid> does not exist' },
  track = { NoSuchJob = 'Track(): Job does not exist' },
  tag = { NoSuchJob = 'Tag(): Job <jid> does not exist' },
  ['recur.update'] = { NoSuchRecurring = 'Recur(): No recurring job <jid>' },
  ['recur.tag'] = { NoSuchRecurring = 'Tag(): Job <jid> does not exist' },
  ['recur.untag'] = { NoSuchRecurring = 'Untag(): Job <jid> does not exist' },
}

-- Refusals that read the same for all commands.
local says_always = {
  BadArgument = '<what> <why>', TooLarge = '<what> of <bytes> bytes is over the limit of <max>',
  QueueFull = 'queue <queue> has <jobs> unfinished jobs and takes <max>',
}

local function in_words(command, refusal)
  local text = says[command] and says[command][refusal.refused] or says_always[refusal.refused]
    or refusal.refused
  return (text:gsub('<(%a+)>', function(name) return tostring(refusal.fields[name]) end))
end

-- The data of a heartbeat or a failure, decoded and encoded again. `false` changes nothing.
local function rewritten_data(text)
  if not text then return nil end
  local again, value = rewritten(text)
  if value == false then return nil end
  return need_utf8(again, 'data')
end

-- The commands ----------------------------------------------------------------------------------------------

local commands = {}
qless.commands = commands

local NO_QUEUE, NO_JID, NO_RECURRING = 'Queue(): no queue name provided', 'Job(): no jid provided',
  'Recurring(): no jid provided'

-- first: the index of the queue among the arguments.
local function put_or_requeue(arguments, worker, first, existing)
  if worker ~= '' then need_name(worker, nil, 'worker') end
  local queue = need_name(arguments[first], NO_QUEUE, 'queue')
  local jid = need_name(arguments[first + 1], 'Put(): Arg "jid" missing', 'jid')
  local klass = need_name(arguments[first + 2], 'Put(): Arg "klass" missing', 'klass')
  local data = need(arguments[first + 3], 'Put(): Arg "data" missing')
  if decode(data) == false then fail_with('Put(): Arg "data" missing or not JSON: false') end
  need_utf8(data, 'data')
  local delay = need_number(arguments[first + 4], 'Put(): Arg "delay" not a number: ')
  local options = options_from(arguments, first + 5)
  local retries = options.retries and need_whole(options.retries, 'Put(): Arg "retries" not a number: ',
    'retries')
  local tags = options.tags and need_names(options.tags, 'tags', 'tag')
  local priority = options.priority and need_number(options.priority, 'Put(): Arg "priority" not a number')
  local depends = options.depends and need_names(options.depends, 'depends', 'jid') or {}
  refuse_throttles(options, 'Put()')
  check_payload(data)
  check_retries(retries)
  at_most('tags', tags and #tags or 0, TAGS_MAX)
  put.put({ queue = queue, jid = jid, klass = klass, data = data, delay = delay, priority = priority,
    retries = retries, tags = tags, depends = depends, caller = worker, existing = existing,
    cycles = 'Accept' })
  return jid
end

-- Whether a text is JSON.
local function is_json(text)
  return text and (pcall(decode, text))
end

function commands.put(arguments)
  -- The older form has no worker, and so an odd number of arguments.
  local first = #arguments % 2 == 1 and 1 or 2
  if not number_of(arguments[first + 4]) then
    -- If an option lacks its value, the other form fits: there a number for the delay is behind JSON.
    local other = 3 - first
    if number_of(arguments[other + 4]) and is_json(arguments[other + 3]) then options_from(arguments, other + 5) end
  end
  return put_or_requeue(arguments, first == 2 and arguments[1] or '', first, 'Replace')
end

function commands.requeue(arguments)
  local jid = need_name(arguments[3], NO_JID, 'jid')
  if not job.exists(jid) then refuse('NoSuchJob', { jid = jid }) end
  return put_or_requeue(arguments, arguments[1], 2, 'Require')
end

local function with_document(of)
  return document(of.jid)
end

function commands.pop(arguments)
  local queue = need_name(arguments[1], NO_QUEUE, 'queue')
  local worker = need_name(arguments[2], 'Pop(): Arg "worker" missing', 'worker')
  local count = need_count(arguments[3], 'Pop(): Arg "count" missing or not a number: ')
  return cjson.encode((pop.pop({ queues = { queue }, worker = worker, count = count, order = 'Strict',
    show = with_document })))
end

function commands.peek(arguments)
  local queue = need_name(arguments[1], NO_QUEUE, 'queue')
  if arguments[3] then
    fail_with("Peek(): takes a queue and a count; an offset before the count is reqless's, and geartrain has none")
  end
  return documents(pop.peek(queue, need_count(arguments[2], 'Peek(): Arg "count" missing or not a number: ')))
end

function commands.heartbeat(arguments)
  local jid = need_name(arguments[1], NO_JID, 'jid')
  local worker = need_name(arguments[2], 'Heatbeat(): Arg "worker" missing', 'worker')
  local data = rewritten_data(arguments[3])
  check_payload(data)
  return finish.heartbeat({ jid = jid, holder = { worker = worker }, data = data })
end

function commands.complete(arguments)
  local jid = need_name(arguments[1], NO_JID, 'jid')
  local worker = need_name(arguments[2], 'Complete(): Arg "worker" missing', 'worker')
  local queue = need_name(arguments[3], 'Complete(): Arg "queue" missing', 'queue')
  local data = need(arguments[4], 'Complete(): Arg "data" missing or not JSON: nil')
  if decode(data) == false then fail_with('Complete(): Arg "data" missing or not JSON: false') end
  need_utf8(data, 'data')
  check_payload(data)
  local options = {}
  for at = 5, #arguments - 1, 2 do options[arguments[at]] = arguments[at + 1] end
  local delay = options.delay and need_number(options.delay, 'Complete(): Arg "delay" not a number: ')
  local depends = options.depends and need_names(options.depends, 'depends', 'jid')
  refuse_throttles(options, 'Complete()')
  local on
  if options.next then
    on = { queue = need_name(options.next, NO_QUEUE, 'queue'), delay = delay or 0, depends = depends or {},
      cycles = 'Accept' }
  else
    if delay then fail_with('Complete(): "delay" cannot be used without a "next".') end
    if depends then fail_with('Complete(): "depends" cannot be used without a "next".') end
  end
  return finish.complete({ jid = jid, holder = { worker = worker }, queue = queue, data = data, next = on })
end

function commands.fail(arguments)
  local jid = need_name(arguments[1], NO_JID, 'jid')
  local worker = need_name(arguments[2], 'Fail(): Arg "worker" missing', 'worker')
  local group = need_name(arguments[3], 'Fail(): Arg "group" missing', 'group', GROUP_BYTES_MAX)
  local message = need_utf8(need(arguments[4], 'Fail(): Arg "message" missing'), 'a message')
  local data = rewritten_data(arguments[5])
  check_payload(data)
  check_size('message', message)
  finish.fail({ jid = jid, holder = { worker = worker }, group = group, message = message, data = data })
  return jid
end

function commands.retry(arguments)
  local jid = need_name(arguments[1], NO_JID, 'jid')
  local queue = need_name(arguments[2], 'Retry(): Arg "queue" missing', 'queue')
  local worker = need_name(arguments[3], 'Retry(): Arg "worker" missing', 'worker')
  local delay = need_number(arguments[4] or '0', 'Retry(): Arg "delay" not a number: ')
  if arguments[5] then need_name(arguments[5], '', 'group', GROUP_BYTES_MAX) end
  if arguments[6] then need_utf8(arguments[6], 'a message') end
  check_size('message', arguments[6])
  return finish.retry({ jid = jid, holder = { worker = worker }, queue = queue, delay = delay,
    group = arguments[5], message = arguments[6] })
end

function commands.timeout(arguments)
  finish.timeout(need_all(arguments, 'jid'))
end

function commands.cancel(arguments)
  finish.cancel(need_all(arguments, 'jid'))
  return arguments
end

function commands.unfail(arguments)
  local queue = need_name(arguments[1], NO_QUEUE, 'queue')
  local group = need_name(arguments[2], 'Unfail(): Arg "group" missing', 'group', GROUP_BYTES_MAX)
  local count = need_count(arguments[3] or '25', 'Unfail(): Arg "count" not a number: ')
  if count == 0 then bad('count', 'must be at least 1') end
  return finish.unfail(queue, group, count)
end

function commands.priority(arguments)
  local jid = need_name(arguments[1], NO_JID, 'jid')
  local priority = need_number(arguments[2], 'Priority(): Arg "priority" missing or not a number: ')
  change.priority(jid, priority)
  return priority
end

function commands.depends(arguments)
  local jid = need_name(arguments[1], NO_JID, 'jid')
  local command = need(arguments[2], 'Depends(): Arg "command" missing')
  local others = from(arguments, 3)
  local known_word = command == 'on' or command == 'off'
  local all = command == 'off' and others[1] == 'all'
  if known_word and not all then need_all(others, 'jid') end
  local of = job.load(jid)
  if not of or of.state ~= 'depends' then
    fail_with('Depends(): Job ' .. jid .. ' not in the depends state: ' .. (of and of.state or 'false'))
  end
  if not known_word then fail_with('Depends(): Argument "command" must be "on" or "off"') end
  change.depend(jid, all and {} or { [command] = others }, 'Accept')
  return 1
end

function commands.log(arguments)
  local jid = need_name(arguments[1], "Log(): Argument 'jid' missing", 'jid')
  local message = need_utf8(need(arguments[2], "Log(): Argument 'message' missing"), 'a message')
  local data = arguments[3]
  if data then
    -- What cannot be encoded again could not be shown, nor could the job.
    local _, fields = rewritten(data, LOG_DEPTH_MAX)
    if type(fields) ~= 'table' then
      fail_with('Log(): Argument "data" must be a JSON object: ' .. shown(data))
    end
    need_utf8(data, 'Log(): Argument "data"')
  end
  change.log(jid, message, data)
end

function commands.track(arguments)
  if not arguments[1] then
    local there, gone = read.tracked()
    local jobs = {}
    for place, jid in ipairs(there) do jobs[place] = document(jid) end
    return cjson.encode({ jobs = jobs, expired = gone })
  end
  local jid = need_name(arguments[2], 'Track(): Arg "jid" missing', 'jid')
  if not job.exists(jid) then fail_with('Track(): Job does not exist') end
  local word = arguments[1]:lower()
  if word ~= 'track' and word ~= 'untrack' then
    fail_with('Track(): Unknown action "' .. shown(arguments[1]) .. '"')
  end
  return change.track(jid, word == 'track') and '1' or '0'
end

function commands.tag(arguments)
  local command = need(arguments[1], 'Tag(): Arg "command" must be "add", "remove", "get" or "top"')
  if command == 'add' or command == 'remove' then
    local jid = need_name(arguments[2], 'Tag(): Arg "jid" missing', 'jid')
    local tags = need_all(from(arguments, 3), 'tag')
    return cjson.encode((command == 'add' and change.add_tags or change.remove_tags)(jid, tags))
  elseif command == 'get' then
    local tag = need_name(arguments[2], 'Tag(): Arg "tag" missing', 'tag')
    local offset = need_offset(arguments[3] or '0', 'Tag(): Arg "offset" not a number: ')
    local count = need_count(arguments[4] or '25', 'Tag(): Arg "count" not a number: ')
    local total, jobs = read.tagged(tag, offset, count)
    return cjson.encode({ total = total, jobs = jobs })
  elseif command == 'top' then
    local offset = need_offset(arguments[2] or '0', 'Tag(): Arg "offset" not a number: ')
    return cjson.encode(read.top_tags(offset, need_count(arguments[3] or '25',
      'Tag(): Arg "count" not a number: ')))
  end
  fail_with('Tag(): First argument must be "add", "remove" or "get"')
end

function commands.get(arguments)
  local found = document(need_name(arguments[1], NO_JID, 'jid'))
  return found and cjson.encode(found) or false
end

function commands.multiget(arguments)
  return documents(need_all(arguments, 'jid'))
end

function commands.length(arguments)
  return read.length(need_name(arguments[1], NO_QUEUE, 'queue'))
end

function commands.jobs(arguments)
  local state = need(arguments[1], 'Jobs(): Arg "state" missing')
  local queue, first = nil, 2
  if state ~= 'complete' then
    queue, first = need_name(arguments[2], 'Jobs(): Arg "queue" missing', 'queue'), 3
  end
  local offset = need_offset(arguments[first] or '0', 'Jobs(): Arg "offset" not a number: ')
  local count = arguments[first + 1] or '25'
  -- Clients that stop all running jobs ask for -1 of them, which a Redis takes for all.
  local all = count == '-1' and (state == 'running' or state == 'stalled')
  count = all and COUNT_MAX or need_count(count, 'Jobs(): Arg "count" not a number: ')
  -- Qless has no listing of waiting jobs.
  local jids = state ~= 'waiting' and read.jobs(state, queue, offset, count)
  return jids or fail_with('Jobs(): Unknown type "' .. shown(state) .. '"')
end

function commands.failed(arguments)
  if not arguments[1] then return cjson.encode(read.failures()) end
  local group = need_name(arguments[1], nil, 'group', GROUP_BYTES_MAX)
  local start = need_offset(arguments[2] or '0', 'Failed(): Arg "start" is not a number: ')
  local limit = need_count(arguments[3] or '25', 'Failed(): Arg "limit" is not a number: ')
  local total, jobs = read.failed(group, start, limit)
  return cjson.encode({ total = total, jobs = jobs })
end

function commands.queues(arguments)
  if arguments[1] then need_name(arguments[1], nil, 'queue') end
  local all = read.queues(arguments[1])
  return cjson.encode(arguments[1] and all[1] or all)
end

function commands.workers(arguments)
  if arguments[1] then need_name(arguments[1], nil, 'worker') end
  if arguments[1] then return cjson.encode(read.worker_jobs(arguments[1])) end
  local all = read.workers()
  for _, worker in ipairs(all) do worker.seen = nil end
  return cjson.encode(all)
end

function commands.stats(arguments)
  local queue = need_name(arguments[1], NO_QUEUE, 'queue')
  return cjson.encode(stats.report(queue, need_number(arguments[2],
    'Stats(): Arg "date" missing or not a number: ')))
end

function commands.pause(arguments)
  change.pause(need_all(arguments, 'queue'), true)
end

function commands.unpause(arguments)
  change.pause(need_all(arguments, 'queue'), false)
end

commands['queue.forget'] = function(arguments)
  change.forget_queues(need_all(arguments, 'queue'))
end

commands['worker.deregister'] = function(arguments)
  change.forget_workers(need_all(arguments, 'worker'))
end

commands['config.get'] = function(arguments)
  if arguments[1] then return (option.get(need_utf8(arguments[1], 'an option'))) end
  local all = {}
  for name, value in pairs(option.listed) do all[name] = value end
  for name, value in pairs(option.all()) do all[name] = value end
  return cjson.encode(all)
end

commands['config.set'] = function(arguments)
  local name = need_utf8(need(arguments[1], 'config.set(): Arg "option" missing'), 'an option')
  option.set(name, need_utf8(need(arguments[2], 'config.set(): Arg "value" missing'), 'a value'), true)
end

commands['config.unset'] = function(arguments)
  option.unset(need_utf8(need(arguments[1], 'config.unset(): Arg "option" missing'), 'an option'))
end

function commands.recur(arguments)
  local queue = need_name(arguments[1], NO_QUEUE, 'queue')
  local jid = need_name(arguments[2], 'RecurringJob On(): Arg "jid" missing', 'jid')
  local klass = need_name(arguments[3], 'RecurringJob On(): Arg "klass" missing', 'klass')
  local data = arguments[4]
  local kind = need(arguments[5], 'RecurringJob On(): Arg "spec" missing')
  if decode(data) == false then fail_with('RecurringJob On(): Arg "data" not JSON: false') end
  need_utf8(data, 'data')
  if kind ~= 'interval' then fail_with('Recur(): schedule type "' .. shown(kind) .. '" unknown') end
  local interval = need_number(arguments[6], 'Recur(): Arg "interval" not a number: ')
  local offset = need_number(arguments[7], 'Recur(): Arg "offset" not a number: ')
  if interval <= 0 then fail_with('Recur(): Arg "interval" must be greater than 0') end
  local options = options_from(arguments, 8)
  local tags = options.tags and need_names(options.tags, 'tags', 'tag') or {}
  local priority = need_number(options.priority or '0', 'Recur(): Arg "priority" not a number: ')
  local retries = need_whole(options.retries or '0', 'Recur(): Arg "retries" not a number: ', 'retries')
  local backlog = need_whole(options.backlog or '0', 'Recur(): Arg "backlog" not a number: ', 'backlog')
  refuse_throttles(options, 'Recur()')
  recur.recur({ queue = queue, jid = jid, klass = klass, data = data, interval = interval, offset = offset,
    tags = tags, priority = priority, retries = retries, backlog = backlog })
  return jid
end

function commands.unrecur(arguments)
  recur.unrecur(need_name(arguments[1], NO_RECURRING, 'jid'))
  return 1
end

commands['recur.get'] = function(arguments)
  local of = recur.get(need_name(arguments[1], NO_RECURRING, 'jid'))
  if not of then return false end
  return cjson.encode({ jid = of.jid, klass = of.klass, state = 'recur', queue = of.queue,
    priority = of.priority, interval = of.interval,
    retries = of.retries, count = of.count, data = of.data, tags = of.tags, backlog = of.backlog })
end

commands['recur.update'] = function(arguments)
  local jid = need_name(arguments[1], NO_RECURRING, 'jid')
  recur.existing(jid)
  local changes = {}
  for at = 2, #arguments, 2 do
    local field, value = arguments[at], arguments[at + 1]
    if not value then fail_with('No value provided for ' .. shown(field)) end
    if field == 'retries' then
      changes.retries = need_whole(value, 'Recur(): Arg "retries" must be a number: ', 'retries')
    elseif field == 'priority' or field == 'interval' then
      changes[field] = need_number(value, 'Recur(): Arg "' .. field .. '" must be a number: ')
    elseif field == 'backlog' then
      changes.backlog = need_whole(value, 'Recur(): Arg "backlog" not a number: ', 'backlog')
    elseif field == 'data' then
      if decode(value) == false then fail_with('Recur(): Arg "data" is not JSON-encoded: false') end
      changes.data = need_utf8(value, 'data')
    elseif field == 'klass' or field == 'queue' then
      changes[field] = need_name(value, nil, field)
    else
      local more = field == 'throttles' and ': ' .. THROTTLES or ''
      fail_with('Recur(): Unrecognized option "' .. shown(field) .. '"' .. more)
    end
  end
  recur.update(jid, changes)
  return 1
end

commands['recur.tag'] = function(arguments)
  local jid = need_name(arguments[1], NO_RECURRING, 'jid')
  return cjson.encode(recur.tag(jid, need_all(from(arguments, 2), 'tag')))
end

commands['recur.untag'] = function(arguments)
  local jid = need_name(arguments[1], NO_RECURRING, 'jid')
  return cjson.encode(recur.untag(jid, need_all(from(arguments, 2), 'tag')))
end

-- Empty lists are objects in Qless; the encoder does that with its default settings.
function qless.execute(arguments)
  local command = need(arguments[1], 'Must provide a command')
  local execute = commands[command]
  if not execute then
    local more = (command:find('^throttle%.') or command:find('^queue%.throttle%.')) and ': ' .. THROTTLES or ''
    fail_with('Unknown command ' .. shown(command) .. more)
  end
  now = number_of(arguments[2])
  if not now then fail_with('Arg "now" missing or not a number: nil') end
  now = now + 0
  local done, reply = pcall(execute, from(arguments, 3))
  if done then return reply end
  if type(reply) == 'table' and reply.refused then fail_with(in_words(command, reply)) end
  error(reply)
end
