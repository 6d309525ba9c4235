-- Qless's own API: texts in, JSON out, and its words for what is wrong.

local NAME_BYTES_MAX = 512
local GROUP_BYTES_MAX = 4160

local function need(value, text)
  if value == nil or value == false then complain(text) end
  return value
end

-- A finite number, or a complaint that ends with what was given instead.
local function need_number(value, text)
  return number_of(value) or complain(text .. tostring(value))
end

-- A whole number from 0 to what anybody can want.
local function need_count(value, text)
  local number = need_number(value, text)
  if number < 0 or number % 1 ~= 0 then complain(text .. tostring(value)) end
  return number < OFFSET_MAX and number or OFFSET_MAX
end

-- Reads JSON, in the words of the library that does if it cannot.
local function decode(text)
  if not text then complain('Expected JSON but found nothing') end
  local read, value = pcall(cjson.decode, text)
  if not read then complain((tostring(value):gsub('^user_script:%d+: ', ''))) end
  return value
end

-- Whether a text is UTF-8. Others could not be shown to our own callers, and a queue with such a job in it could not be popped by them.
local function is_utf8(text)
  if not text:find('[\128-\255]') then return true end
  for _, sequence in ipairs({ '[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]', '[\225-\236\238\239][\128-\191][\128-\191]',
    '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]', '[\241-\243][\128-\191][\128-\191][\128-\191]',
    '\244[\128-\143][\128-\191][\128-\191]' }) do
    text = text:gsub(sequence, ' ')
  end
  return not text:find('[\128-\255]')
end

local function need_utf8(text, what)
  if not is_utf8(text) then complain(what .. ' must be UTF-8') end
  return text
end

-- A name that is to be kept.
local function need_name(name, missing, what, max)
  need(name, missing)
  max = max or NAME_BYTES_MAX
  if #name == 0 or #name > max or name:find('%z') then complain('a ' .. what .. ' must have 1 to ' .. max .. ' bytes and no NUL') end
  return need_utf8(name, 'a ' .. what)
end

local function need_list(text, what)
  local list = decode(text)
  if type(list) ~= 'table' then complain(what .. ' must be a list') end
  for _, member in ipairs(list) do
    if type(member) ~= 'string' and type(member) ~= 'number' then complain(what .. ' must be a list of names') end
    need_name(tostring(member), what, what:match('"(.-)s?"') or 'name')
  end
  return list
end

-- Names are texts, also where a caller wrote numbers.
local function need_names(text, what)
  local names = need_list(text, what)
  for place, name in ipairs(names) do names[place] = tostring(name) end
  return names
end

-- Options given as words and values behind the other arguments. The last one of a name counts.
local function options_from(arguments, first)
  if (#arguments - first + 1) % 2 ~= 0 then
    complain('Odd number of additional args: ' .. table.concat(arguments, ',', first))
  end
  local found = {}
  for at = first, #arguments, 2 do found[arguments[at]] = arguments[at + 1] end
  return found
end

-- The arguments from one on.
local function from(arguments, first)
  local rest = {}
  for at = first, #arguments do rest[at - first + 1] = arguments[at] end
  return rest
end

-- Documents -------------------------------------------------------------------------------------------------------------------------------------------

-- A list as Qless encodes it: one without members is an object, which is what the encoder makes of an empty table.
local function history_of(jid)
  local history = {}
  for place, text in ipairs(read.history(jid)) do
    local entry = cjson.decode(text)
    local shown = type(entry[3]) == 'table' and entry[3] or {}
    shown.what, shown.when = entry[2], entry[1]
    history[place] = shown
  end
  return history
end

local function document(jid)
  local of = job.load(jid, true)
  if not of then return nil end
  local tags, failure, parent = job.more(of, 'tags', 'failure', 'spawned_from_jid')
  return {
    jid = jid, klass = of.klass, state = of.state, queue = of.queue, worker = of.worker, tracked = say.is_tracked(jid),
    priority = tonumber(of.priority) or 0, expires = tonumber(of.expires) or 0, retries = tonumber(of.retries) or 0,
    remaining = floor(tonumber(of.remaining) or 0), data = of.data or '', tags = cjson.decode(tags or '{}'), history = history_of(jid),
    failure = cjson.decode(failure or '{}'), spawned_from_jid = parent, dependents = job.dependents(jid),
    dependencies = job.dependencies(jid),
  }
end

local function documents(jids)
  local all = {}
  for _, jid in ipairs(jids) do all[#all + 1] = document(jid) end
  return cjson.encode(all)
end

-- What is wrong, in Qless's words, by command and kind of refusal. ------------------------------------------------------------------------------------

local says = {
  requeue = { NoSuchJob = 'Requeue(): Job <jid> does not exist' },
  heartbeat = {
    NoSuchJob = 'Heartbeat(): Job <jid> does not exist', NotRunning = 'Heartbeat(): Job <jid> not currently running: <qless>',
    HeldByAnother = 'Heartbeat(): Job <jid> given out to another worker: <holder>',
  },
  complete = {
    NoSuchJob = 'Complete(): Job <jid> does not exist', NotRunning = 'Complete(): Job <jid> is not currently running: <qless>',
    HeldByAnother = 'Complete(): Job <jid> has been handed out to another worker: <holder>',
    WrongQueue = 'Complete(): Job <jid> running in another queue: <queue>',
  },
  fail = {
    NoSuchJob = 'Fail(): Job <jid>does not exist', NotRunning = 'Fail(): Job <jid>not currently running: <qless>',
    HeldByAnother = 'Fail(): Job <jid> running with another worker: <holder>',
  },
  retry = {
    NoSuchJob = 'Retry(): Job <jid> does not exist', NotRunning = 'Retry(): Job <jid> is not currently running: <qless>',
    HeldByAnother = 'Retry(): Job <jid> has been given to another worker: <holder>',
    WrongQueue = 'Retry(): Job <jid> running in another queue: <queue>',
  },
  timeout = { NoSuchJob = 'Timeout(): Job <jid> does not exist', NotRunning = 'Timeout(): Job <jid> not running' },
  cancel = { IsDependency = 'Cancel(): <jid> is a dependency of <dependent> but is not mentioned to be canceled' },
  priority = { NoSuchJob = 'Priority(): Job <jid> does not exist' },
  depends = {
    NoSuchJob = 'Depends(): Job <jid> not in the depends state: false', NotInDepends = 'Depends(): Job <jid> not in the depends state: <qless>',
  },
  log = { NoSuchJob = 'Log(): Job <jid> does not exist' },
  track = { NoSuchJob = 'Track(): Job does not exist' },
  tag = { NoSuchJob = 'Tag(): Job <jid> does not exist' },
  ['recur.update'] = { NoSuchRecurring = 'Recur(): No recurring job <jid>' },
  ['recur.tag'] = { NoSuchRecurring = 'Tag(): Job <jid> does not exist' },
  ['recur.untag'] = { NoSuchRecurring = 'Untag(): Job <jid> does not exist' },
}

-- What is refused everywhere alike.
local says_always = {
  BadArgument = '<what> <why>', TooLarge = '<what> of <bytes> bytes is over the limit of <max>',
  QueueFull = 'queue <queue> has <jobs> unfinished jobs and takes <max>',
}

local function in_words(command, refusal)
  local text = says[command] and says[command][refusal.refused] or says_always[refusal.refused] or refusal.refused
  return (text:gsub('<(%a+)>', function(name) return tostring(refusal.fields[name]) end))
end

-- The commands --------------------------------------------------------------------------------------------------------------------------------------

local commands = {}
qless.commands = commands

local NO_QUEUE, NO_JID, NO_RECURRING = 'Queue(): no queue name provided', 'Job(): no jid provided', 'Recurring(): no jid provided'

local function put_or_requeue(arguments, existing)
  -- The older form has no worker, and so an odd number of arguments.
  local worker, first = '', 0
  if #arguments % 2 == 0 then worker, first = arguments[1], 1 end
  local queue = need_name(arguments[first + 1], NO_QUEUE, 'queue')
  local jid = need_name(arguments[first + 2], existing == 'Require' and NO_JID or 'Put(): Arg "jid" missing', 'jid')
  local klass = need_name(arguments[first + 3], 'Put(): Arg "klass" missing', 'klass')
  local data = arguments[first + 4]
  if decode(data) == false then complain('Put(): Arg "data" missing or not JSON: false') end
  need_utf8(data, 'data')
  local delay = need_number(arguments[first + 5], 'Put(): Arg "delay" not a number: ')
  local options = options_from(arguments, first + 6)
  local retries = options.retries and need_number(options.retries, 'Put(): Arg "retries" not a number: ')
  local tags = options.tags and need_list(options.tags, 'Put(): Arg "tags"')
  local priority = options.priority and need_number(options.priority, 'Put(): Arg "priority" not a number')
  local depends = options.depends and need_names(options.depends, 'Put(): Arg "depends"') or {}
  check_payload(data)
  check_retries(retries)
  at_most('tags', tags and #tags or 0, TAGS_MAX)
  put.put({ queue = queue, jid = jid, klass = klass, data = data, delay = delay, priority = priority, retries = retries, tags = tags,
    depends = depends, caller = worker, existing = existing, cycles = 'Accept' })
  return jid
end

function commands.put(arguments)
  return put_or_requeue(arguments, 'Replace')
end

function commands.requeue(arguments)
  return put_or_requeue(arguments, 'Require')
end

local function shown(of)
  return document(of.jid)
end

function commands.pop(arguments)
  local queue = need_name(arguments[1], NO_QUEUE, 'queue')
  local worker = need_name(arguments[2], 'Pop(): Arg "worker" missing', 'worker')
  local count = need_count(arguments[3], 'Pop(): Arg "count" missing or not a number: ')
  return cjson.encode((pop.pop({ queues = { queue }, worker = worker, count = count, order = 'Strict', show = shown })))
end

function commands.peek(arguments)
  local queue = need(arguments[1], NO_QUEUE)
  return documents(pop.peek(queue, need_count(arguments[2], 'Peek(): Arg "count" missing or not a number: ')))
end

function commands.heartbeat(arguments)
  local jid = need(arguments[1], NO_JID)
  local worker = need(arguments[2], 'Heatbeat(): Arg "worker" missing')
  local data = arguments[3] and cjson.encode(decode(need_utf8(arguments[3], 'data')))
  check_payload(data)
  return finish.heartbeat({ jid = jid, holder = { worker = worker }, data = data })
end

function commands.complete(arguments)
  local jid = need(arguments[1], NO_JID)
  local worker = need(arguments[2], 'Complete(): Arg "worker" missing')
  local queue = need(arguments[3], 'Complete(): Arg "queue" missing')
  local data = need(arguments[4], 'Complete(): Arg "data" missing or not JSON: nil')
  decode(data)
  need_utf8(data, 'data')
  check_payload(data)
  local options = {}
  for at = 5, #arguments - 1, 2 do options[arguments[at]] = arguments[at + 1] end
  local delay = options.delay and need_number(options.delay, 'Complete(): Arg "delay" not a number: ')
  local depends = options.depends and need_names(options.depends, 'Complete(): Arg "depends"')
  local on
  if options.next then
    on = { queue = need_name(options.next, NO_QUEUE, 'queue'), delay = delay or 0, depends = depends or {}, cycles = 'Accept' }
  else
    if delay then complain('Complete(): "delay" cannot be used without a "next".') end
    if depends then complain('Complete(): "depends" cannot be used without a "next".') end
  end
  return finish.complete({ jid = jid, holder = { worker = worker }, queue = queue, data = data, next = on })
end

function commands.fail(arguments)
  local jid = need(arguments[1], NO_JID)
  local worker = need(arguments[2], 'Fail(): Arg "worker" missing')
  local group = need_name(arguments[3], 'Fail(): Arg "group" missing', 'group', GROUP_BYTES_MAX)
  local message = need_utf8(need(arguments[4], 'Fail(): Arg "message" missing'), 'message')
  local data = arguments[5] and cjson.encode(decode(need_utf8(arguments[5], 'data')))
  check_payload(data)
  check_size('message', message)
  finish.fail({ jid = jid, holder = { worker = worker }, group = group, message = message, data = data })
  return jid
end

function commands.retry(arguments)
  local jid = need(arguments[1], NO_JID)
  local queue = need(arguments[2], 'Retry(): Arg "queue" missing')
  local worker = need(arguments[3], 'Retry(): Arg "worker" missing')
  local delay = need_number(arguments[4] or '0', 'Retry(): Arg "delay" not a number: ')
  if arguments[5] then need_name(arguments[5], '', 'group', GROUP_BYTES_MAX) end
  if arguments[6] then need_utf8(arguments[6], 'message') end
  check_size('message', arguments[6])
  return finish.retry({ jid = jid, holder = { worker = worker }, queue = queue, delay = delay, group = arguments[5], message = arguments[6] })
end

function commands.timeout(arguments)
  finish.timeout(arguments)
end

function commands.cancel(arguments)
  finish.cancel(arguments)
  return arguments
end

function commands.unfail(arguments)
  local queue = need_name(arguments[1], NO_QUEUE, 'queue')
  local group = need(arguments[2], 'Unfail(): Arg "group" missing')
  local count = need_count(arguments[3] or '25', 'Unfail(): Arg "count" not a number: ')
  if count == 0 then bad('count', 'must be at least 1') end
  return finish.unfail(queue, group, count)
end

function commands.priority(arguments)
  local jid = need(arguments[1], NO_JID)
  local priority = need_number(arguments[2], 'Priority(): Arg "priority" missing or not a number: ')
  change.priority(jid, priority)
  return priority
end

function commands.depends(arguments)
  local jid = need(arguments[1], NO_JID)
  local command = need(arguments[2], 'Depends(): Arg "command" missing')
  local of = job.load(jid)
  if not of or of.state ~= 'depends' then
    complain('Depends(): Job ' .. jid .. ' not in the depends state: ' .. (of and of.state or 'false'))
  end
  if command == 'on' then
    change.depend(jid, { on = from(arguments, 3) }, 'Accept')
  elseif command == 'off' and arguments[3] == 'all' then
    change.depend(jid, {}, 'Accept')
  elseif command == 'off' then
    change.depend(jid, { off = from(arguments, 3) }, 'Accept')
  else
    complain('Depends(): Argument "command" must be "on" or "off"')
  end
  return 1
end

function commands.log(arguments)
  local jid = need(arguments[1], "Log(): Argument 'jid' missing")
  local message = need(arguments[2], "Log(): Argument 'message' missing")
  local data = arguments[3]
  if data and type(decode(data)) ~= 'table' then complain('Log(): Argument "data" must be a JSON object: ' .. data) end
  need_utf8(message, 'message')
  need_utf8(data or '', 'data')
  change.log(jid, message, data)
end

function commands.track(arguments)
  if not arguments[1] then
    local there, gone = read.tracked()
    local jobs = {}
    for place, jid in ipairs(there) do jobs[place] = document(jid) end
    return cjson.encode({ jobs = jobs, expired = gone })
  end
  local jid = need(arguments[2], 'Track(): Arg "jid" missing')
  if not job.exists(jid) then complain('Track(): Job does not exist') end
  local word = arguments[1]:lower()
  if word ~= 'track' and word ~= 'untrack' then complain('Track(): Unknown action "' .. arguments[1] .. '"') end
  return change.track(jid, word == 'track') and '1' or '0'
end

function commands.tag(arguments)
  local command = need(arguments[1], 'Tag(): Arg "command" must be "add", "remove", "get" or "top"')
  if command == 'add' or command == 'remove' then
    local jid = need(arguments[2], 'Tag(): Arg "jid" missing')
    local tags = from(arguments, 3)
    for _, tag in ipairs(tags) do need_name(tag, '', 'tag') end
    return cjson.encode((command == 'add' and change.add_tags or change.remove_tags)(jid, tags))
  elseif command == 'get' then
    local tag = need(arguments[2], 'Tag(): Arg "tag" missing')
    local offset = need_count(arguments[3] or '0', 'Tag(): Arg "offset" not a number: ')
    local count = need_count(arguments[4] or '25', 'Tag(): Arg "count" not a number: ')
    local total, jobs = read.tagged(tag, offset, count)
    return cjson.encode({ total = total, jobs = jobs })
  elseif command == 'top' then
    local offset = need_count(arguments[2] or '0', 'Tag(): Arg "offset" not a number: ')
    return cjson.encode(read.top_tags(offset, need_count(arguments[3] or '25', 'Tag(): Arg "count" not a number: ')))
  end
  complain('Tag(): First argument must be "add", "remove" or "get"')
end

function commands.get(arguments)
  local found = document(need(arguments[1], NO_JID))
  return found and cjson.encode(found) or false
end

function commands.multiget(arguments)
  return documents(arguments)
end

function commands.length(arguments)
  return read.length(need(arguments[1], NO_QUEUE))
end

function commands.jobs(arguments)
  local state = need(arguments[1], 'Jobs(): Arg "state" missing')
  local queue, first = nil, 2
  if state ~= 'complete' then
    queue, first = need(arguments[2], 'Jobs(): Arg "queue" missing'), 3
  end
  local offset = need_count(arguments[first] or '0', 'Jobs(): Arg "offset" not a number: ')
  local count = need_count(arguments[first + 1] or '25', 'Jobs(): Arg "count" not a number: ')
  -- There is no listing of waiting jobs in Qless.
  local jids = state ~= 'waiting' and read.jobs(state, queue, offset, count)
  return jids or complain('Jobs(): Unknown type "' .. state .. '"')
end

function commands.failed(arguments)
  if not arguments[1] then return cjson.encode(read.failures()) end
  local start = need_count(arguments[2] or '0', 'Failed(): Arg "start" is not a number: ')
  local limit = need_count(arguments[3] or '25', 'Failed(): Arg "limit" is not a number: ')
  local total, jobs = read.failed(arguments[1], start, limit)
  return cjson.encode({ total = total, jobs = jobs })
end

function commands.queues(arguments)
  local all = read.queues(arguments[1])
  return cjson.encode(arguments[1] and all[1] or all)
end

function commands.workers(arguments)
  return cjson.encode(arguments[1] and read.worker_jobs(arguments[1]) or read.workers())
end

function commands.stats(arguments)
  local queue = need(arguments[1], NO_QUEUE)
  return cjson.encode(stats.report(queue, need_number(arguments[2], 'Stats(): Arg "date" missing or not a number: ')))
end

function commands.pause(arguments)
  change.pause(arguments, true)
end

function commands.unpause(arguments)
  change.pause(arguments, false)
end

commands['queue.forget'] = function(arguments)
  change.forget_queues(arguments)
end

commands['worker.deregister'] = function(arguments)
  change.forget_workers(arguments)
end

commands['config.get'] = function(arguments)
  if arguments[1] then return (option.get(arguments[1])) end
  local all = {}
  for name, value in pairs(option.listed) do all[name] = value end
  for name, value in pairs(option.all()) do all[name] = value end
  return cjson.encode(all)
end

commands['config.set'] = function(arguments)
  local name = need(arguments[1], 'config.set(): Arg "option" missing')
  option.set(name, need(arguments[2], 'config.set(): Arg "value" missing'))
end

commands['config.unset'] = function(arguments)
  option.unset(need(arguments[1], 'config.unset(): Arg "option" missing'))
end

function commands.recur(arguments)
  local queue = need_name(arguments[1], NO_QUEUE, 'queue')
  local jid = need_name(arguments[2], 'RecurringJob On(): Arg "jid" missing', 'jid')
  local klass = need_name(arguments[3], 'RecurringJob On(): Arg "klass" missing', 'klass')
  local data = arguments[4]
  local kind = need(arguments[5], 'RecurringJob On(): Arg "spec" missing')
  decode(data)
  need_utf8(data, 'data')
  if kind ~= 'interval' then complain('Recur(): schedule type "' .. kind .. '" unknown') end
  local interval = need_number(arguments[6], 'Recur(): Arg "interval" not a number: ')
  local offset = need_number(arguments[7], 'Recur(): Arg "offset" not a number: ')
  if interval <= 0 then complain('Recur(): Arg "interval" must be greater than 0') end
  local options = options_from(arguments, 8)
  local tags = need_list(options.tags or '[]', 'Recur(): Arg "tags"')
  local priority = need_number(options.priority or '0', 'Recur(): Arg "priority" not a number: ')
  local retries = need_number(options.retries or '0', 'Recur(): Arg "retries" not a number: ')
  local backlog = need_number(options.backlog or '0', 'Recur(): Arg "backlog" not a number: ')
  recur.recur({ queue = queue, jid = jid, klass = klass, data = data, interval = interval, offset = offset, tags = tags,
    priority = priority, retries = retries, backlog = backlog })
  return jid
end

function commands.unrecur(arguments)
  recur.unrecur(need(arguments[1], NO_RECURRING))
  return 1
end

commands['recur.get'] = function(arguments)
  local of = recur.get(need(arguments[1], NO_RECURRING))
  if not of then return false end
  return cjson.encode({ jid = of.jid, klass = of.klass, state = 'recur', queue = of.queue, priority = of.priority, interval = of.interval,
    retries = of.retries, count = of.count, data = of.data, tags = of.tags, backlog = of.backlog })
end

commands['recur.update'] = function(arguments)
  local jid = need(arguments[1], NO_RECURRING)
  recur.existing(jid)
  local changes = {}
  for at = 2, #arguments, 2 do
    local field, value = arguments[at], arguments[at + 1]
    if not value then complain('No value provided for ' .. field) end
    if field == 'priority' or field == 'retries' or field == 'interval' then
      changes[field] = need_number(value, 'Recur(): Arg "' .. field .. '" must be a number: ')
    elseif field == 'backlog' then
      changes.backlog = need_number(value, 'Recur(): Arg "backlog" not a number: ')
    elseif field == 'data' then
      decode(value)
      changes.data = need_utf8(value, 'data')
    elseif field == 'klass' or field == 'queue' then
      changes[field] = need_name(value, '', field)
    else
      complain('Recur(): Unrecognized option "' .. field .. '"')
    end
  end
  recur.update(jid, changes)
  return 1
end

commands['recur.tag'] = function(arguments)
  local jid, tags = need(arguments[1], NO_RECURRING), from(arguments, 2)
  for _, tag in ipairs(tags) do need_name(tag, '', 'tag') end
  return cjson.encode(recur.tag(jid, tags))
end

commands['recur.untag'] = function(arguments)
  return cjson.encode(recur.untag(need(arguments[1], NO_RECURRING), from(arguments, 2)))
end

-- Lists without members are objects in Qless; the encoder sees to that, if it is as it was when Redis started it.
function qless.execute(arguments)
  local command = need(arguments[1], 'Must provide a command')
  local execute = need(commands[command], 'Unknown command ' .. command)
  now = number_of(arguments[2])
  if not now then complain('Arg "now" missing or not a number: nil') end
  local done, reply = pcall(execute, from(arguments, 3))
  if done then return reply end
  if type(reply) == 'table' and reply.refused then complain(in_words(command, reply)) end
  error(reply)
end
