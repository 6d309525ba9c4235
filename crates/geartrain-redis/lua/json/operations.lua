-- The operations: a table by name, each with its fields, in the order in which errors list them, and what it does
-- with them. They read their fields, call the native operation, and show its reply; they have no rules of queues.

local document, text, number = json.document, json.text, json.number
local name, required, names = fields.name, fields.required, fields.names
local TOKEN_MAX = 18446744073709551615
local RELOCK_MAX = 1000
local LIMIT_MAX = 1000
local UNFAIL_STEP = 500
local SELECTS_MAX = 16 -- how often a page is asked for: one command examines a bounded number of jobs
local WAIT_MIN = 0.01 -- BLPOP takes 0 for ever
local TICK_SECONDS, TICK_STEPS = 1, 100 -- how often a pop ticks, and how much it does then
local EXPIRED_MAX = 100 -- how many expired locks a pop that waits handles: no other command runs meanwhile
local CODE_MAX = 2147483647
local EXACT_MAX = 9007199254740992 -- larger whole numbers would lose digits

-- Executes a native operation and returns its reply.
local function ask(operation_name, list)
  cache.calls, cache.place = { { now, { [operation_name] = list } } }, 1
  local reply = native.operations[operation_name](list)
  if cache.behind then policies.apply() end
  return cmsgpack.unpack(type(reply) == 'table' and table.concat(reply) or reply)
end

local function only_one(given, one, other)
  if fields.raw(given, one) and fields.raw(given, other) then
    json.bad('`' .. one .. '` and `' .. other .. '` are both given: leave one out')
  end
end

local function no_such_job(jid)
  refuse('NoSuchJob', { jid = jid })
end

local function existing(jid)
  return native.job_of(jid) or no_such_job(jid)
end

-- What only a server can do.
local function unsupported(what)
  return function() json.fail('unsupported', 'JSON over a Redis cannot ' .. what) end
end

-- Refuses a filter: its language is that of a server.
local function refuse_filter(given)
  for _, field in ipairs({ 'where', 'all', 'dry_run' }) do
    local raw = fields.raw(given, field)
    if raw and raw ~= 'false' then
      json.fail('unsupported', 'JSON over a Redis cannot select jobs by `' .. field .. '`: name them')
    end
  end
end

-- Jids: 32 hexadecimal digits in the form of a UUID of version 7. The first ones are the time; a counter takes the
-- place of the random bits, because scripts have no randomness.
local function new_jid()
  local at = moment()
  local count = call('HINCRBY', key.counts, 'jids', 1)
  return string.format('%08x%04x7%03x8%015.0f', floor(at * 1000 / 65536), floor(at * 1000) % 65536,
    floor(at * 1000000) % 1000, count)
end

-- Puts ------------------------------------------------------------------------------------------------------

local POLICIES = { wait = 'Wait', fail = 'Fail', skip = 'Skip', run = 'Run' }

-- The put options, in the order of the wire; nil if there are none.
local function put_options_of(given)
  local crashes = fields.whole(given, 'crashes')
  if crashes == 0 then json.bad('`crashes`: it must be at least 1') end
  local expires = fields.time(given, 'expires', true)
  local traceparent = fields.text(given, 'traceparent')
  local options = {
    [1] = fields.unique(given), [5] = fields.keep_result(given), [6] = expires,
    [7] = fields.span(given, 'timeout'), [8] = fields.backoff(given), [9] = crashes,
    [10] = fields.flag(given, 'roll_call') or nil, [13] = traceparent,
  }
  local policy = fields.text(given, 'on_dependency_failure')
  if policy and not POLICIES[policy] then
    json.bad('`on_dependency_failure`: ' .. quote(policy) .. ' is not a policy: use wait, fail, skip or run')
  end
  if policy and policy ~= 'wait' then options[12] = POLICIES[policy] end
  return next(options) ~= nil and options or nil
end

local OUTCOMES = { Created = 'created', Replaced = 'replaced', Existing = 'existing' }

-- The outcome of a put, and the jid if it is another.
local function outcome_of(reply)
  local kind, inside = native.variant(reply)
  return OUTCOMES[kind] or 'coalesced', inside and (inside.jid or inside[1])
end

local function put(given)
  local options = put_options_of(given)
  local at, delay = fields.time(given, 'at'), fields.delay(given, 'in')
  only_one(given, 'in', 'at')
  local due = delay and now + delay or at
  if at then delay = at - now end
  local payload = fields.payload(given, 'payload') or NO_BYTES
  local queue, klass = required(given, 'queue'), required(given, 'klass')
  local priority, retries = fields.number(given, 'priority'), fields.whole(given, 'retries')
  local tags, depends = names(given, 'tags', 'tag'), names(given, 'depends', 'jid')
  local replaces, jid = fields.flag(given, 'replace'), name(given, 'jid')
  jid = jid or new_jid()
  local outcome, other = outcome_of(ask('Put', { queue, jid, klass, payload, delay or 0, priority, retries, tags,
    depends or {}, nil, replaces and 'Replace' or 'Keep', 'Refuse', options }))
  -- The job that was there before keeps its own time.
  if outcome == 'existing' or outcome == 'coalesced' then due = nil end
  return document('jid', text(other or jid), 'outcome', text(outcome), 'coalesced',
    json.flag(outcome == 'coalesced'), 'due', number(due))
end

-- Pops ------------------------------------------------------------------------------------------------------

local ORDERS = { strict = 'Strict', ['round-robin'] = { RoundRobin = { 0 } }, priority = { Priority = { 0 } } }

local function list_of_queues(given)
  only_one(given, 'queue', 'queues')
  local queue = name(given, 'queue')
  return queue and { queue } or names(given, 'queues', 'queue') or json.missing('queue')
end

-- The answer of a wait: the list to BLPOP, and for how many seconds. Then the same operation is repeated, with what
-- is left of the wait.
local function wait_for(list, seconds)
  if seconds < WAIT_MIN then seconds = WAIT_MIN end
  return document('wait', document('blpop', text(list), 'seconds', number(seconds)))
end

-- A driver ticks once a second for deadlines, expiries and results. Where all clients speak JSON, pops do.
local function tick_if_due()
  local last = tonumber(call('HGET', key.counts, 'ticked') or nil)
  if not last or now - last >= TICK_SECONDS or last > now then tick.tick(TICK_STEPS) end
end

local function pop_jobs(given)
  local queues, order_name = list_of_queues(given), fields.text(given, 'order') or 'strict'
  local order = ORDERS[order_name]
  if not order then
    json.bad('`order` must be strict, round-robin or priority, not ' .. quote(json.excerpt(order_name)))
  end
  local klasses_of, worker = names(given, 'klasses', 'klass'), required(given, 'worker')
  local count, wait = fields.count(given, 'count', 1), fields.delay(given, 'wait')
  tick_if_due()
  local list = { queues, worker, count, order, false, klasses_of }
  local of = { queues = queues, worker = worker, klasses = klasses_of }
  local popped = ask('Pop', list)[1]
  -- Nothing that becomes ready would end the wait of a pop for no job.
  wait = wait and wait > 0 and count > 0 and wait or nil
  -- A pop for one job must not delay the warnings of other holders.
  local handled = 0
  while wait and #popped == 0 and handled < EXPIRED_MAX and pop.has_expired(of) do
    popped, handled = ask('Pop', list)[1], handled + 1
  end
  local process = parked.list_process(of)
  if #popped > 0 or not wait then
    parked.unpark(process, 0)
    return json.array(popped, view.popped)
  end
  parked.park(process, 0, klasses.lines(of))
  local due = (cache.unfinished or handled == EXPIRED_MAX) and now or read.next_due(queues) or huge
  return wait_for(parked.list_of(process), math.min(wait, parked.seconds, due - now))
end

-- Attempts --------------------------------------------------------------------------------------------------

local function holder(given)
  local jid, token = required(given, 'jid'), fields.text(given, 'token')
  if token then
    local digits, hint = token:match('^(%d+)%.(%d+)$')
    if not digits or tonumber(digits) > TOKEN_MAX or tonumber(hint) > TOKEN_MAX then
      json.bad('`token`: ' .. quote(token) .. ' is not a lock token: give back the one that came with the job')
    end
    return jid, { Token = token }
  end
  local worker = name(given, 'worker')
  if not worker then
    json.fail('missing-field', '`token` is missing: send the one that came with the job')
  end
  return jid, { Worker = worker }
end

local function heartbeat(given)
  local jid, who = holder(given)
  local expires = ask('Heartbeat', { jid, who, fields.payload(given, 'payload') })
  return document('jid', text(jid), 'expires', number(expires))
end

local function progress(given)
  local jid, who = holder(given)
  local part = fields.whole(given, 'part', EXACT_MAX) or json.missing('part')
  local whole = fields.whole(given, 'whole', EXACT_MAX) or json.missing('whole')
  if whole == 0 then json.bad('progress must be out of at least 1') end
  if part > whole then
    local most = json.number(whole)
    json.bad('progress must be at most ' .. most .. ' of ' .. most .. ', not ' .. json.number(part))
  end
  local left = fields.whole(given, 'left')
  ask('Progress', { jid, who, { { part, whole }, left }, fields.payload(given, 'text') })
  return document('jid', text(jid), 'progress',
    view.progress({ portion = { part, whole }, seconds_left = left }))
end

local function chunk(given)
  local jid, who = holder(given)
  local kind = fields.flag(given, 'warning') and 'Warning' or 'Data'
  local data = fields.payload(given, 'data') or json.missing('data')
  return document('jid', text(jid), 'told', number(ask('Chunk', { jid, who, kind, data })))
end

-- The new payload and the result, if they were given.
local function payload_and_result(given, default_code)
  local raw = fields.raw(given, 'code')
  local code = raw and fields.integer_in(raw)
  if raw and (not code or math.abs(code) > CODE_MAX) then
    json.bad('`code` must be a whole number, not ' .. json.excerpt(raw))
  end
  local result = fields.payload(given, 'result')
  return fields.payload(given, 'payload'), (result or code) and { code or default_code, result or NO_BYTES } or nil
end

local function complete(given)
  local jid, who = holder(given)
  local payload, result = payload_and_result(given, 0)
  local delay, depends = fields.delay(given, 'in'), names(given, 'depends', 'jid')
  local queue = name(given, 'next', 'queue')
  if not queue and (delay or depends) then json.bad('`in` and `depends` go with `next`, the next queue') end
  local following = queue and { queue, delay or 0, depends or {}, 'Refuse' } or nil
  local state = ask('Complete', { jid, who, nil, payload, following, result })
  return document('jid', text(jid), 'state', text(view.kebab(state)), 'queue', text(queue))
end

local function fail(given)
  local jid, who = holder(given)
  local payload, result = payload_and_result(given, 1)
  local group, message = required(given, 'group'), fields.text(given, 'message') or json.missing('message')
  ask('Fail', { jid, who, group, message, payload, result })
  return document('jid', text(jid), 'state', text('failed'), 'group', text(group))
end

local function retry(given)
  local jid, who = holder(given)
  local delay, chance = fields.delay(given, 'in'), nil
  if not delay then
    -- Leaves the delay to the backoff, in the middle of its range: scripts have no randomness.
    delay, chance = 0, 0.5
  elseif delay == 0 then
    delay = -1 -- at once, as a delay in the past
  end
  local remaining = ask('Retry', { jid, who, nil, delay, chance, name(given, 'group'),
    fields.text(given, 'message') })
  return document('jid', text(jid), 'remaining', number(remaining), 'failed', json.flag(remaining < 0))
end

local function release(given)
  local jid, who = holder(given)
  ask('HandBack', { jid, who, fields.text(given, 'message'), fields.delay(given, 'in') or 0 })
  return document('jid', text(jid))
end

local function timeout(given)
  local jids = fields.required_names(given, 'jids', 'jid')
  ask('Timeout', { jids })
  return document('jids', json.texts(jids))
end

local function relock(given)
  local queues, count = names(given, 'queues', 'queue'), fields.count(given, 'count', RELOCK_MAX)
  return json.array(ask('Relock', { required(given, 'worker'), queues or {}, count }), view.popped)
end

-- Looking up ------------------------------------------------------------------------------------------------

local function get(given)
  return view.job(existing(required(given, 'jid')))
end

local function peek(given)
  local queue, count = required(given, 'queue'), fields.count(given, 'count', 1)
  return json.array(ask('Peek', { queue, count }), view.job)
end

local function get_tombstone(given)
  local jid = required(given, 'jid')
  return view.tombstone(canceled.get(jid) or no_such_job(jid))
end

local STATES = { 'scheduled', 'depends', 'waiting', 'running', 'stalled', 'complete', 'failed' }

-- The terms of a filter that are fields of their own.
local function terms_of(given)
  local terms = {}
  local function add(kind, value) if value then terms[#terms + 1] = { [kind] = value } end end
  add('Queue', name(given, 'queue'))
  local state = fields.text(given, 'state')
  if state and not contains(STATES, state) then
    json.bad('`state`: must be scheduled, depends, waiting, running, stalled, complete or failed, not '
      .. quote(json.excerpt(state)))
  end
  add('State', state and state:gsub('^%l', string.upper))
  for _, field in ipairs({ 'klass', 'tag', 'group', 'worker' }) do
    add(field:gsub('^%l', string.upper), name(given, field))
  end
  return terms
end

-- A limit from 1 to 1000.
local function limit_of(given)
  local limit = fields.whole(given, 'limit') or 25
  if limit < 1 or limit > LIMIT_MAX then json.bad('`limit`: it must be from 1 to ' .. LIMIT_MAX) end
  return limit
end

local function jobs(given)
  refuse_filter(given)
  local terms, limit, after = terms_of(given), limit_of(given), fields.text(given, 'after')
  local jids = {}
  for _ = 1, SELECTS_MAX do
    local page = ask('Select', { terms, after, limit - #jids })
    for _, one in ipairs(page.jobs) do jids[#jids + 1] = one.jid end
    after = page.next
    if not after or #jids >= limit then break end
  end
  return document('items', view.jobs(jids), 'next', text(after))
end

local function status(given)
  local jid, queue, unique = name(given, 'jid'), name(given, 'queue'), fields.unique(given)
  if jid and (queue or unique) then json.bad('give either `jid`, or `queue` and `unique`') end
  if not jid then
    if not queue then json.missing(unique and 'queue' or 'jid') end
    if not unique then json.missing('unique') end
  end
  local of = ask('Status', { jid and { Jid = jid } or { Unique = { queue, unique } } })
  if not of then json.fail('not-unfinished', 'there is no such job, or it has ended') end
  return view.status(of)
end

local function why_not(given)
  local jid, queue = name(given, 'jid'), name(given, 'queue')
  if jid and queue then json.bad('give either `jid` or `queue`') end
  if jid then return view.why(ask('Why', { jid })) end
  return view.why_queue(ask('WhyQueue', { queue or json.missing('jid') }))
end

local function tracked()
  local there, gone = read.tracked()
  return document('jobs', view.jobs(there), 'gone', json.texts(gone))
end

-- Results ---------------------------------------------------------------------------------------------------

local function no_result(jid)
  local of = job.load(jid) or no_such_job(jid)
  local state = job.state_of(of)
  if state == 'Complete' or state == 'Failed' then
    json.fail('no-result', 'job ' .. jid .. ' is ' .. state:lower() .. ', and its result was not stored',
      'put jobs with `keep_result` to read it later')
  end
  json.fail('unfinished', 'job ' .. jid .. ' is unfinished: it is ' .. state:lower(),
    'ask again, or ask why it is not running')
end

local function result(given)
  local jid, wait = required(given, 'jid'), fields.delay(given, 'wait')
  local kept = put_options.result(jid)
  if kept then
    put_options.wake_list(jid)
    return view.result(jid, kept.how, kept.outcome, kept.ended, kept['until'])
  end
  local of, ended = job.load(jid), put_options.ending(jid)
  if not (of and job.is_unfinished(of)) and ended then
    put_options.wake_list(jid)
    return view.result(jid, ended.how, ended.outcome, ended.at)
  end
  if not of or not job.is_unfinished(of) or not wait or wait <= 0 then return no_result(jid) end
  return wait_for(put_options.attach_list(of), math.min(wait, parked.seconds))
end

-- Changes ---------------------------------------------------------------------------------------------------

local function cancel(given)
  local because = fields.text(given, 'because')
  refuse_filter(given)
  only_one(given, 'jid', 'jids')
  local jid = name(given, 'jid')
  local jids, seen = {}, {}
  for _, one in ipairs(jid and { jid } or names(given, 'jids', 'jid') or json.missing('jid')) do
    if not seen[one] then jids[#jids + 1] = one end
    seen[one] = true
  end
  local cancelled = ask('Cancel', { sorted(jids), because, fields.flag(given, 'cascade') })
  return document('cancelled', number(cancelled))
end

-- The queue that a job is in, or was in last.
local function last_queue(of)
  if of.queue then return of.queue end
  for at = #of.history, 1, -1 do
    local kind, inside = native.variant(of.history[at].what)
    if kind == 'Put' then return inside.queue end
  end
end

local function requeue(given)
  local queue = name(given, 'queue')
  refuse_filter(given)
  local jid, klass = required(given, 'jid'), name(given, 'klass')
  local payload, delay = fields.payload(given, 'payload'), fields.delay(given, 'in')
  local of = existing(jid)
  queue = queue or last_queue(of)
  if not queue then
    json.fail('no-queue', 'the last queue of job ' .. jid .. ' is not known any more: send a queue')
  end
  local outcome = outcome_of(ask('Put', { queue, jid, klass or of.klass, payload or of.payload, delay or 0, nil,
    nil, nil, {}, nil, 'Require', 'Refuse' }))
  return document('jid', text(jid), 'queue', text(queue), 'outcome', text(outcome))
end

local function priority(given)
  local wanted = fields.number(given, 'priority') or json.missing('priority')
  refuse_filter(given)
  local jid = required(given, 'jid')
  ask('SetPriority', { jid, wanted })
  return document('jid', text(jid), 'priority', number(wanted))
end

-- Adds or removes tags.
local function tagging(operation_name)
  return function(given)
    local tags = fields.required_names(given, 'tags', 'tag')
    refuse_filter(given)
    local jid = required(given, 'jid')
    return document('jid', text(jid), 'tags', json.texts(ask(operation_name, { jid, tags })))
  end
end

local function tracking(on)
  return function(given)
    local jid = required(given, 'jid')
    return document('jid', text(jid), 'tracked', json.flag(on), 'changed', json.flag(ask('Track', { jid, on })))
  end
end

local function change_dependencies(given, change)
  local jid = required(given, 'jid')
  ask('Depend', { jid, change, 'Refuse' })
  local state, inside = native.variant(existing(jid).state)
  return document('jid', text(jid), 'state', text(view.kebab(state)), 'dependencies',
    json.texts(inside and inside.on or {}))
end

local function depend(given)
  return change_dependencies(given, { On = fields.required_names(given, 'on', 'jid') })
end

local function undepend(given)
  local on, all = names(given, 'on', 'jid'), fields.flag(given, 'all')
  if on and all then json.bad('give either `on` or `all`') end
  return change_dependencies(given, all and 'OffAll' or { Off = on or json.missing('on') })
end

local function log(given)
  local jid, message = required(given, 'jid'), fields.text(given, 'message') or json.missing('message')
  local data = fields.raw(given, 'data')
  if data and not data:find('^{') then json.bad('`data` must be a JSON object') end
  ask('Log', { jid, message, data })
  return document('jid', text(jid))
end

-- Queues ----------------------------------------------------------------------------------------------------

local function list_queues(given)
  local queue = name(given, 'queue')
  local counts, of = read.queues(queue), {}
  for _, one in ipairs(figures.figures(queue)) do of[one.name] = one end
  return json.array(counts, function(one) return view.queue(one, of[one.name] or {}) end)
end

local function show_stats(given)
  local queue, day = required(given, 'queue'), fields.day(given, 'day')
  return view.stats(queue, day, ask('Stats', { queue, day }))
end

local function pausing(operation_name, paused)
  return function(given)
    local queues = fields.required_names(given, 'queues', 'queue')
    ask(operation_name, { queues })
    return document('queues', json.texts(queues), 'paused', json.flag(paused))
  end
end

-- The list of limits by priority.
local function levels_of(given)
  local raw = fields.raw(given, 'by_priority')
  local levels = {}
  if not raw then return levels end
  local function refuse_it()
    json.bad('`by_priority` must be a list of {"priority": 5, "max": 100}, not ' .. json.excerpt(raw))
  end
  for at, one in ipairs(raw:find('^%[') and json.list(raw) or refuse_it()) do
    local keys, values = json.object(one:find('^{') and one or refuse_it(), '{}')
    local priority_of, max = tonumber(values.priority or nil), tonumber(values.max or nil)
    if #keys ~= 2 or not priority_of or math.abs(priority_of) == huge then refuse_it() end
    if not max or max < 0 or max > EXACT_MAX or max % 1 ~= 0 then refuse_it() end
    levels[at] = { priority_of, max }
  end
  return levels
end

local function limits(given)
  local queue, levels = required(given, 'queue'), levels_of(given)
  local jobs_max, rate = fields.whole(given, 'max', EXACT_MAX), fields.rate(given)
  local concurrency, none = fields.whole(given, 'max_concurrency'), fields.flag(given, 'none')
  local any = jobs_max or rate or #levels > 0
  if none and (any or concurrency) then json.bad('`none` removes all limits: give no other') end
  if none or any then ask('SetLimits', { queue, { jobs_max, levels, rate } }) end
  local option_name, other_spelling = queue .. '-max-concurrency', 'max-concurrency-' .. queue
  if none or concurrency == 0 then
    for _, one in ipairs({ option_name, other_spelling }) do
      if option.all()[one] then option.unset(one) end
    end
  elseif concurrency then
    option.set(option_name, number(concurrency))
  end
  local found = ask('GetLimits', { queue })
  local max = option.concurrency(queue)
  return view.limits(queue, found, max and floor(max))
end

local function forget(given)
  local queues, workers = names(given, 'queues', 'queue'), names(given, 'workers', 'worker')
  if queues and workers then json.bad('give either `queues` or `workers`') end
  if workers then ask('ForgetWorkers', { workers }) else ask('ForgetQueues', { queues or json.missing('queues') }) end
  return document('forgotten', json.texts(queues or workers))
end

local function failed(given)
  local limit, offset = limit_of(given), fields.whole(given, 'offset') or 0
  local group = name(given, 'group')
  if group then
    local _, jids = read.failed(group, offset, limit)
    return view.jobs(jids)
  end
  local groups = {}
  for one, count in pairs(read.failures()) do groups[#groups + 1] = { one, count } end
  table.sort(groups, function(one, other)
    if one[2] ~= other[2] then return one[2] > other[2] end
    return one[1] < other[1]
  end)
  return json.array(groups, function(one) return document('group', text(one[1]), 'count', number(one[2])) end)
end

-- Puts the oldest failed jobs of a group again, each where it was.
local function unfail_in_place(group, count)
  local total = read.failed(group, 0, 0)
  local _, jids = read.failed(group, math.max(total - count, 0), count)
  local moved = 0
  for at = #jids, 1, -1 do
    local of = native.job_of(jids[at])
    if of and of.queue then
      ask('Put', { of.queue, of.jid, of.klass, of.payload, 0, nil, nil, nil, {}, nil, 'Require', 'Refuse' })
      moved = moved + 1
    end
  end
  return moved
end

local function unfail(given)
  local queue = name(given, 'queue')
  refuse_filter(given)
  local group, count = required(given, 'group'), fields.whole(given, 'count', EXACT_MAX)
  local available, moved = read.failures()[group] or 0, 0
  local wanted = math.min(count or available, available)
  while moved < wanted do
    local step = math.min(wanted - moved, UNFAIL_STEP)
    local some = queue and ask('Unfail', { queue, group, step }) or not queue and unfail_in_place(group, step)
    if some == 0 then break end
    moved = moved + some
  end
  return document('group', text(group), 'moved', number(moved))
end

-- Workers ---------------------------------------------------------------------------------------------------

local function workers(given)
  local worker = name(given, 'worker')
  if worker then
    local of = read.worker_jobs(worker)
    for _, jid in ipairs(of.stalled) do of.jobs[#of.jobs + 1] = jid end
    return view.jobs(of.jobs)
  end
  local all, can = read.workers(), {}
  for _, one in ipairs(capabilities.announced()) do can[one.worker] = one.abilities end
  return json.array(all, function(one) return view.worker(one, can[one.name]) end)
end

local function roll_call(given)
  local queue, klass = required(given, 'queue'), name(given, 'klass')
  local count = ask('RollCall', { queue, klass })
  return document('queue', text(queue), 'klass', text(klass), 'workers', number(count))
end

local CAN = { queue = true, klass = true, timeout = true }

-- A list of capabilities.
local function capabilities_in(given, field)
  local raw = fields.raw(given, field)
  if not raw then return nil end
  local function refuse_it()
    json.bad('`' .. field .. '` must be a list of {"queue": "mail", "klass": null, "timeout": null}, not '
      .. json.excerpt(raw))
  end
  local all = {}
  for at, one in ipairs(raw:find('^%[') and json.list(raw) or refuse_it()) do
    local keys, values = json.object(one:find('^{') and one or refuse_it(), '{}')
    for _, found in ipairs(keys) do
      if not CAN[found] then refuse_it() end
    end
    local queue, klass = fields.raw(values, 'queue'), fields.raw(values, 'klass')
    queue = queue and json.string(queue) or refuse_it()
    klass = klass and (json.string(klass) or refuse_it())
    local seconds = fields.raw(values, 'timeout')
    if seconds and not tonumber(seconds) then refuse_it() end
    all[at] = { fields.checked('queue', queue), klass and fields.checked('klass', klass),
      fields.span(values, 'timeout') }
  end
  return all
end

local function announce(given)
  local worker, change, count = required(given, 'worker'), nil, 0
  for _, kind in ipairs({ 'can', 'cannot', 'only' }) do
    local list = capabilities_in(given, kind)
    if list then change, count = { [kind:gsub('^%l', string.upper)] = list }, count + 1 end
  end
  if count == 0 then json.missing('can') end
  if count > 1 then json.bad('give one of `can`, `cannot` and `only`') end
  ask('Announce', { worker, change })
  local found = capabilities.announced(worker)[1]
  return document('worker', text(worker), 'can', view.capabilities(found and found.abilities or {}))
end

local function worker_lost(given)
  local worker = required(given, 'worker')
  local jids = ask('Gone', { worker, fields.text(given, 'evidence') })
  return document('worker', text(worker), 'jids', json.texts(jids))
end

-- Recurring jobs --------------------------------------------------------------------------------------------

local function recur_job(given)
  local queue, klass = required(given, 'queue'), required(given, 'klass')
  local payload, jid = fields.payload(given, 'payload') or NO_BYTES, name(given, 'jid')
  local every, first = fields.span(given, 'every'), fields.delay(given, 'in')
  for _, field in ipairs({ 'cron', 'overlap', 'timeout', 'backoff', 'keep_result', 'unique', 'expires_in' }) do
    if fields.raw(given, field) then
      json.fail('unsupported', 'JSON over a Redis cannot run recurring jobs with `' .. field .. '`')
    end
  end
  if not every then json.missing('every') end
  local tags, priority_of = names(given, 'tags', 'tag'), fields.number(given, 'priority')
  local retries, backlog = fields.whole(given, 'retries'), fields.whole(given, 'backlog')
  jid = jid or new_jid()
  ask('Recur', { queue, jid, klass, payload, { Interval = every }, first or 0, priority_of or 0, retries or 5,
    tags or {}, backlog or 0 })
  return document('jid', text(jid), 'outcome', text('recurring'), 'coalesced', 'false', 'due',
    number(first and now + first))
end

-- Refuses to show recurring jobs with a cron expression or put options, rather than leave them out.
local function refuse_periodic(jid)
  local exists = jid and call('EXISTS', key.periodic .. jid) == 1 or not jid and call('EXISTS', key.periodics) == 1
  if exists then
    json.fail('unsupported', 'JSON over a Redis cannot show recurring jobs with a cron expression or put options')
  end
end

local function recurring(given)
  local jid, queue = name(given, 'jid'), name(given, 'queue')
  if jid and queue then json.bad('give either `jid` or `queue`') end
  refuse_periodic(jid)
  if jid then return view.recurring(ask('GetRecurring', { jid }) or refuse('NoSuchRecurring', { jid = jid })) end
  local all = {}
  for _, one in ipairs(queue and { queue } or call('ZRANGE', key.queues, 0, -1)) do
    for _, found in ipairs(zset.read('ZRANGE', key.queue .. one .. '-recur', 0, -1)) do
      all[#all + 1] = ask('GetRecurring', { found })
    end
  end
  return json.array(all, view.recurring)
end

local function unrecur(given)
  local jids = fields.required_names(given, 'jids', 'jid')
  for _, jid in ipairs(jids) do
    if call('EXISTS', key.periodic .. jid) == 0 and not recur.get(jid) then
      refuse('NoSuchRecurring', { jid = jid })
    end
  end
  for _, jid in ipairs(jids) do
    ask('RemovePeriodic', { jid })
    ask('Unrecur', { jid })
  end
  return document('removed', json.texts(jids))
end

-- The table -------------------------------------------------------------------------------------------------

-- Name, fields, function; in the order in which errors list them.
local HELD = 'jid token worker '
local FILTER = ' where all dry_run'
local TABLE = {
  { 'put', 'queue klass payload priority in at tags depends retries jid replace unique timeout expires backoff '
    .. 'crashes roll_call keep_result on_dependency_failure traceparent', put },
  { 'pop', 'queue queues worker count order klasses wait', pop_jobs },
  { 'peek', 'queue count', peek },
  { 'heartbeat', HELD .. 'payload', heartbeat },
  { 'progress', HELD .. 'part whole left text', progress },
  { 'chunk', HELD .. 'data warning', chunk },
  { 'complete', HELD .. 'payload result code next in depends', complete },
  { 'fail', HELD .. 'group message payload result code', fail },
  { 'retry', HELD .. 'in group message', retry },
  { 'release', HELD .. 'in message', release },
  { 'timeout', 'jids', timeout },
  { 'relock', 'worker queues count', relock },
  { 'get', 'jid', get },
  { 'canceled', 'jid', get_tombstone },
  { 'jobs', 'where queue state klass tag group worker limit after', jobs },
  { 'status', 'jid queue unique', status },
  { 'why', 'jid queue', why_not },
  { 'tracked', '', tracked },
  { 'cancel', 'jid jids because cascade' .. FILTER, cancel },
  { 'requeue', 'jid queue klass payload in' .. FILTER, requeue },
  { 'priority', 'jid priority' .. FILTER, priority },
  { 'tag', 'jid tags' .. FILTER, tagging('AddTags') },
  { 'untag', 'jid tags' .. FILTER, tagging('RemoveTags') },
  { 'track', 'jid', tracking(true) },
  { 'untrack', 'jid', tracking(false) },
  { 'depend', 'jid on', depend },
  { 'undepend', 'jid on all', undepend },
  { 'log', 'jid message data', log },
  { 'result', 'jid wait', result },
  { 'events', 'after count wait', unsupported('list events: subscribe to the channels of the namespace') },
  { 'queues', 'queue', list_queues },
  { 'stats', 'queue day', show_stats },
  { 'pause', 'queues', pausing('Pause', true) },
  { 'resume', 'queues', pausing('Resume', false) },
  { 'limits', 'queue max by_priority rate max_concurrency none', limits },
  { 'forget', 'queues workers', forget },
  { 'failed', 'group limit offset', failed },
  { 'unfail', 'group queue count' .. FILTER, unfail },
  { 'workers', 'worker', workers },
  { 'roll-call', 'queue klass', roll_call },
  { 'announce', 'worker can cannot only', announce },
  { 'worker-lost', 'worker evidence', worker_lost },
  { 'recur', 'queue klass payload every cron in jid priority retries tags backlog overlap timeout backoff '
    .. 'keep_result unique expires_in', recur_job },
  { 'recurring', 'jid queue', recurring },
  { 'unrecur', 'jids', unrecur },
  { 'recur-pause', 'jid', unsupported('pause a recurring job') },
  { 'recur-resume', 'jid', unsupported('resume a recurring job') },
  { 'recur-run', 'jid', unsupported('run a recurring job') },
  { 'recur-edit', 'jid queue klass payload every cron priority retries tags untags backlog overlap timeout backoff '
    .. 'keep_result unique expires_in', unsupported('change a recurring job') },
  { 'config', 'key', unsupported('show options: read the hash `ql:config` of the namespace') },
  { 'set-config', 'key value any', unsupported('set an option') },
  { 'unset-config', 'key', unsupported('reset an option') },
}

local by_name = {}
for _, row in ipairs(TABLE) do
  local list = {}
  for field in row[2]:gmatch('%S+') do list[#list + 1] = field end
  by_name[row[1]] = { fields = list, execute = row[3] }
end

local EXAMPLE = '{"put":{"queue":"mail","klass":"welcome"}}'

-- Executes one operation, `{"put": {…}}`.
local function execute(request)
  local keys, values = json.object(request, EXAMPLE)
  if #keys ~= 1 then json.fail('bad-json', 'an operation is an object with one key, like ' .. EXAMPLE) end
  local of = by_name[keys[1]]
  if not of then
    local known = {}
    for at, row in ipairs(TABLE) do known[at] = row[1] end
    json.fail('unknown-operation', 'there is no operation ' .. quote(json.excerpt(keys[1]))
      .. '; the operations are ' .. table.concat(known, ', '))
  end
  local given_keys, given = json.object(values[keys[1]], '{"queue":"mail"}')
  fields.allow(given_keys, of.fields)
  return of.execute(given)
end

-- The document of an operation, or of its error. What was done before an unexpected error stays done, and Redis
-- answers with that error.
local function answer(request)
  now = moment()
  local done, reply = pcall(execute, request)
  if done then return reply, true end
  if type(reply) == 'table' and reply.refused then return view.error(view.refusal(reply.refused, reply.fields)) end
  if type(reply) == 'table' and reply.code then return view.error(reply.code, reply.message, reply.help) end
  error(reply)
end

-- Executes a request: one operation, or a list of them.
function operation.execute(request)
  local broken = json.not_utf8(request)
  if broken then return view.error('bad-json', 'it is not UTF-8 text from byte ' .. broken .. ' on') end
  if not request:find('^[ \t\r\n]*%[') then return (answer(request)) end
  local read_it, list = pcall(json.batch, request)
  if not read_it then
    if type(list) == 'table' and list.code then return view.error(list.code, list.message) end
    error(list)
  end
  if #list > operation.batch_max then
    return view.error('too-large', 'a batch has at most ' .. operation.batch_max .. ' operations, not ' .. #list)
  end
  return json.array(list, function(one) return (answer(one)) end)
end
operation.batch_max = 10000
