-- The native API: one MessagePack request, one MessagePack reply (docs/formats/wire.md). Fields are read by
-- index, because nil leaves holes in Lua's lists.

local match = string.match
local TICK_MAX = 100 -- steps of the tick that one park request does
local VERSION = 1
local PORTION_MAX = 9223372036854774784 -- the largest double below 2^63

-- The name and content of an enum's variant.
local function variant(value)
  if type(value) == 'table' then return next(value) end
  return value, nil
end
native.variant = variant

local function holder_of(value)
  local kind, who = variant(value)
  if kind == 'Token' then return { token = match(who, '^%d+') or '' } end
  return { worker = who }
end

-- An absent list is empty.
local function list_of(value)
  return type(value) == 'table' and value or {}
end

-- The numbers of a waiter. Where a double cannot hold them, they are read from the request again, by the path
-- to them.
local function waiter_of(numbers, way)
  for place = 1, #numbers do
    if int64.is(numbers[place]) then
      local found = int64.request()[2].Batch[cache.place][2]
      for _, step in ipairs(way) do found = found[step] end
      return found
    end
  end
  return numbers
end

local function terms_of(value)
  if type(value) ~= 'table' then return nil end
  local terms = {
    unique = value[1], attach = value[2] and waiter_of(value[2], { 'Put', 13, 2 }),
      lives = value[3] == 'WhileAwaited' and value[3] or nil,
    afterwards = value[4] == 'Forget' and value[4] or nil, result_for = value[5], expires = value[6],
    attempt_max = value[7], backoff = value[8], crashes_max = value[9], roll_call = value[10] or nil,
    aside = value[11], on_dependency_failure = policies.from(value[12]), traceparent = value[13],
    failure = value[14],
  }
  put_options.check(terms)
  if next(terms) == nil then return nil end
  return terms
end

local function next_of(value)
  if type(value) ~= 'table' then return nil end
  local delay = value[2] or 0
  check_delay(delay, value[4] == 'Accept')
  return { queue = value[1], delay = delay, depends = list_of(value[3]), cycles = value[4] }
end

local function result_of(value)
  if type(value) ~= 'table' then return nil end
  check_payload(value[2], 'result')
  return { value[1] or 0, value[2] or NO_BYTES }
end

local function page_from(value)
  local offset, count = value and value[1] or 0, value and value[2] or 25
  -- A 64-bit number is decoded as negative, and is beyond every list.
  return offset >= 0 and offset or OFFSET_MAX + 1, count
end

-- Encoding jobs ---------------------------------------------------------------------------------------------

local function lock_of(of)
  local expires = zset.score(key.queue .. of.queue .. '-locks', of.jid) or tonumber(of.expires) or 0
  return { worker = of.worker, token = (job.token(of) or '0') .. '.0', expires = expires }
end

local function failure_of(text)
  if not text or text == '{}' or text == '' then return nil end
  local failure = cjson.decode(text)
  if not failure.group then return nil end
  local worker = failure.worker
  return {
    group = failure.group, message = tostring(failure.message or ''), when = tonumber(failure.when) or 0,
    worker = worker and worker ~= '' and worker or nil,
  }
end

-- One history entry. A logged one starts with a blank, and is shown as it was given.
local function history_entry(text)
  local entry = cjson.decode(text)
  local when, what, fields = entry[1], entry[2], type(entry[3]) == 'table' and entry[3] or {}
  if not text:find('^%[[^,]*, ') then
    if what == 'put' and fields.q then return { when = when, what = { Put = { queue = fields.q } } } end
    if what == 'popped' and fields.worker then
      return { when = when, what = { Popped = { worker = fields.worker } } }
    end
    if what == 'done' then return { when = when, what = 'Done' } end
    if what == 'failed' and fields.group then
      return { when = when, what = { Failed = { worker = fields.worker, group = fields.group } } }
    end
    if what == 'timed-out' then return { when = when, what = 'TimedOut' } end
    if what == 'handed-back' and fields.worker then
      return { when = when, what = { HandedBack = { worker = fields.worker } } }
    end
    if what == 'crashed' and fields.worker then
      return { when = when, what = { Crashed = { worker = fields.worker } } }
    end
  end
  local data
  if entry[3] ~= nil then
    -- After the time and the name, each with its comma.
    local at = text:find('"', 1, true) + 1
    while true do
      local byte = text:sub(at, at)
      if byte == '"' then break end
      at = at + (byte == '\\' and 2 or 1)
    end
    data = text:sub(at + 2, -2)
  end
  return { when = when, what = { Log = { message = tostring(what), data = data } } }
end

local function state_of(of, failure)
  local state = job.state_of(of)
  if state == 'Scheduled' then
    return state, { Scheduled = { due = zset.score(key.queue .. of.queue .. '-scheduled', of.jid) or 0 } }
  elseif state == 'Depends' then
    return state, { Depends = { on = job.dependencies(of.jid), due = tonumber(of.scheduled or nil) } }
  elseif state == 'Running' then
    return state, { Running = { lock = lock_of(of) } }
  elseif state == 'Complete' then
    return state, { Complete = { at = zset.score(key.completed, of.jid) or 0 } }
  elseif state == 'Failed' then
    return state, { Failed = { failure = failure or { group = 'unknown', message = '', when = 0 } } }
  end
  return state, 'Waiting'
end

local function tags_from(text)
  local tags = text and text ~= '{}' and cjson.decode(text) or {}
  for place, tag in ipairs(tags) do tags[place] = tostring(tag) end
  return tags
end

-- An unsigned integer for native clients. A Qless client may have set another number.
local function count_of(text)
  local count = floor(number_of(text) or 0)
  if count < -1 then return -1 end
  return count < 2147483647 and count or 2147483647
end

-- Everything about a job but its history and the ends of its attempts.
local function present_of(of)
  local jid = of.jid
  local tags, failure, parent = job.more(of, 'tags', 'failure', 'spawned_from_jid')
  failure = failure_of(failure)
  local name, state = state_of(of, failure)
  return {
    jid = jid, klass = of.klass, queue = of.queue ~= '' and of.queue or nil, state = state,
      priority = number_of(of.priority) or 0,
    retries = math.max(count_of(of.retries), 0), remaining = count_of(of.remaining), payload = of.data or '',
    tags = tags_from(tags), history = {}, past_failure = name ~= 'Failed' and failure or nil,
    spawned_from = parent or nil, dependents = job.dependents(jid), tracked = publish.is_tracked(jid),
    particulars = put_options.details(of),
    qless = { state = of.state, worker = of.worker ~= '' and of.worker or nil, expires = tonumber(of.expires) or 0 },
  }
end

native.present_of = present_of

local function job_of(jid)
  local of = job.load(jid, true)
  if not of then return nil end
  local shown = present_of(of)
  for place, text in ipairs(read.history(jid)) do shown.history[place] = history_entry(text) end
  shown.attempts = attempts.of((job.more(of, 'gt-attempts')))
  return shown
end
native.job_of = job_of

local function documents_of(jids)
  local all = {}
  for _, jid in ipairs(jids) do all[#all + 1] = job_of(jid) end
  return all
end

-- MessagePack heads of text by length. Redis's library does the same, but creates one more string each time.
local text_heads = setmetatable({}, {
  __index = function(heads, length)
    local high, low = floor(length / 256), length % 256
    if length >= 65536 then
      return string.char(219, floor(length / 16777216), floor(length / 65536) % 256, high % 256, low)
    end
    if length >= 256 then return string.char(218, high, low) end
    heads[length] = length < 32 and string.char(160 + length) or string.char(217, length)
    return heads[length]
  end,
})

-- Names, and numbers as a hash has them, packed and cached: a batch has few different ones.
local function packed_name(name)
  local packed = cache.packed[name]
  if not packed then
    packed = pack(name)
    cache.packed[name] = packed
  end
  return packed
end

local function packed_number(text)
  local packed = cache.packed_numbers[text]
  if not packed then
    packed = pack(number_of(text) or 0)
    cache.packed_numbers[text] = packed
  end
  return packed
end

-- The same for counts.
local function packed_count(text)
  local packed = cache.packed_counts[text]
  if not packed then
    packed = pack(count_of(text))
    cache.packed_counts[text] = packed
  end
  return packed
end

-- The same for retries, which are never negative.
local function packed_retries(text)
  local packed = text:sub(1, 1) == '-' and '\0' or packed_count(text)
  cache.packed_retries[text] = packed
  return packed
end

local NOTHING_ELSE = NIL .. NIL

-- A popped job, packed by index; `rest` holds its details beyond Qless, if there are any.
local function packed_job(jid, queue, klass, data, priority, retries, remaining, worker, token, deadline,
  rest)
  rest = rest or NOTHING_ELSE
  local names, numbers, counts = cache.packed, cache.packed_numbers, cache.packed_counts
  return '\154' .. text_heads[#jid] .. jid .. (names[queue] or packed_name(queue)) .. (names[klass]
    or packed_name(klass)) .. text_heads[#data] .. data
    .. (numbers[priority] or packed_number(priority)) .. (cache.packed_retries[retries]
      or packed_retries(retries)) .. (counts[remaining] or packed_count(remaining))
    .. '\147' .. (names[worker] or packed_name(worker)) .. text_heads[#token + 2] .. token .. '.0'
      .. (numbers[deadline] or packed_number(deadline)) .. rest
end

local WAITING = pack('Waiting')
local NOT_HELD = '\147' .. pack('waiting') .. NIL .. '\0' -- what Qless clients see: state, worker, deadline
-- No tags, history, last failure, parent, dependents; not tracked; no details.
local NOTHING_MORE = '\144\144' .. NIL .. NIL .. '\144\194' .. NIL .. NOT_HELD

-- A waiting job without options, last failure, dependents and former worker, packed by index, without history. What
-- stands between jid and payload is the same for nearly all jobs of a batch, and is cached for one.
function native.packed_waiting(jid, queue, klass, data, priority, retries, remaining, tags, parent)
  local same = cache.same_waiting
  if not same or same.queue ~= queue or same.klass ~= klass or same.priority ~= priority
    or same.retries ~= retries or same.remaining ~= remaining then
    same = { queue = queue, klass = klass, priority = priority, retries = retries, remaining = remaining,
      packed = packed_name(klass) .. packed_name(queue) .. WAITING .. packed_number(priority)
        .. packed_retries(retries) .. packed_count(remaining) }
    cache.same_waiting = same
  end
  local rest = NOTHING_MORE
  if parent or tags ~= '{}' or publish.is_tracked(jid) then
    rest = (tags == '{}' and '\144' or pack(tags_from(tags))) .. '\144' .. NIL
      .. (parent and pack(parent) or NIL) .. '\144' .. (publish.is_tracked(jid) and '\195' or '\194') .. NIL .. NOT_HELD
  end
  return '\220\0\16' .. text_heads[#jid] .. jid .. same.packed .. text_heads[#data] .. data .. rest
end

local function packed_popped(of, whole)
  local particulars = of.terms and put_options.details(of)
  return packed_job(of.jid, of.queue, of.klass, of.data or '', of.priority, of.retries, of.remaining,
    of.worker, of.token, of.deadline,
    (particulars and pack(particulars) or NIL) .. (whole and pack(job_of(of.jid)) or NIL))
end

local function packed_whole(of)
  return packed_popped(of, true)
end

-- Operations: each takes its fields and returns packed bytes ------------------------------------------------

local operations = {}
native.operations = operations

-- One table for all puts, because they are the most frequent.
local putting = {}
local CREATED = pack('Created')

-- Puts. Returns the reply that is to be packed.
local function put_fields(fields)
  local data, delay, retries, tags = fields[4], fields[5] or 0, fields[7], fields[8]
  check_delay(delay, fields[12] == 'Accept')
  check_payload(data)
  check_retries(retries)
  if tags then at_most('tags', #tags, TAGS_MAX) end
  putting.queue, putting.jid, putting.klass, putting.data, putting.delay = fields[1], fields[2], fields[3],
    data, delay
  putting.priority, putting.retries, putting.tags, putting.depends = fields[6], retries, tags,
    list_of(fields[9])
  putting.caller, putting.existing, putting.cycles, putting.terms = fields[10], fields[11], fields[12],
    fields[13] and terms_of(fields[13])
  return put.put(putting)
end

function operations.Put(fields)
  local done = put_fields(fields)
  return done == 'Created' and CREATED or pack(done)
end

-- Pops. Returns the packed reply in pieces, and how many jobs it has.
local function pop_from_fields(fields)
  local kind, inside = variant(fields[4] or 'Strict')
  local whole = fields[5]
  local popped, turn = pop.pop({ queues = fields[1], worker = fields[2], count = fields[3] or 1, order = kind,
    turn = inside and inside[1] or 0, show = whole and packed_whole or packed_popped, show_plain = not whole
      and packed_job, klasses = fields[6] })
  local count = #popped
  table.insert(popped, 1, '\146' .. packed_head(count, 144, 220))
  popped[count + 2] = pack(turn)
  return popped, count
end

function operations.Pop(fields)
  return (pop_from_fields(fields))
end

function operations.Peek(fields)
  return pack(documents_of(pop.peek(fields[1], fields[2] or 1)))
end

function operations.Heartbeat(fields)
  check_payload(fields[3])
  return pack(finish.heartbeat({ jid = fields[1], holder = holder_of(fields[2]), data = fields[3] }))
end

-- The same for completions.
local completing = {}
local COMPLETED = { complete = pack('Complete'), waiting = pack('Waiting'), scheduled = pack('Scheduled'),
  depends = pack('Depends') }

-- Completes any job.
function native.complete(fields)
  completing.next = fields[5] and next_of(fields[5])
  check_payload(fields[4])
  completing.jid, completing.holder, completing.queue, completing.data = fields[1], holder_of(fields[2]),
    fields[3], fields[4]
  completing.result = fields[6] and result_of(fields[6])
  return COMPLETED[finish.complete(completing)]
end

-- Looks once, for this and all later completions of a batch, whether their jobs have dependents.
local function look_for_dependents()
  local jids = {}
  for place = cache.place, #cache.calls do
    local name, fields = variant(cache.calls[place][2])
    if name == 'Complete' then jids[#jids + 1] = fields[1] end
  end
  cache.looked, cache.alone = true, finish.have_no_dependents(jids, 1)
end

function operations.Complete(fields)
  if fields[3] or fields[4] or fields[5] then return native.complete(fields) end
  local token = holder_of(fields[2]).token
  if fields[6] then result_of(fields[6]) end
  if not cache.looked then look_for_dependents() end
  if token and finish.complete_plain(fields[1], token) then return COMPLETED.complete end
  return native.complete(fields)
end

function operations.Fail(fields)
  check_payload(fields[5])
  check_size('message', fields[4])
  finish.fail({ jid = fields[1], holder = holder_of(fields[2]), group = fields[3], message = fields[4] or '',
    data = fields[5], result = result_of(fields[6]) })
  return NIL
end

function operations.Retry(fields)
  local holder, delay = holder_of(fields[2]), fields[4] or 0
  check_delay(delay, holder.worker)
  check_size('message', fields[7])
  return pack(finish.retry({ jid = fields[1], holder = holder, queue = fields[3],
    delay = delay, chance = fields[5],
    group = fields[6], message = fields[7] }))
end

function operations.Timeout(fields)
  finish.timeout(fields[1])
  return NIL
end

function operations.Cancel(fields)
  canceled.check(fields[2])
  local call_of_it = cache.calls[cache.place]
  return pack(finish.cancel(fields[1], fields[2], fields[3], call_of_it[3]))
end

function operations.Unfail(fields)
  if fields[3] == 0 then bad('count', 'must be at least 1') end
  return pack(finish.unfail(fields[1], fields[2], fields[3]))
end

function operations.SetPriority(fields)
  change.priority(fields[1], fields[2])
  return NIL
end

function operations.Depend(fields)
  local kind, jids = variant(fields[2])
  change.depend(fields[1], { on = kind == 'On' and jids or nil, off = kind == 'Off' and jids or nil },
    fields[3])
  return NIL
end

function operations.Log(fields)
  change.log(fields[1], fields[2], fields[3])
  return NIL
end

function operations.Track(fields)
  return pack(change.track(fields[1], fields[2]))
end

function operations.Tracked()
  local there, gone = read.tracked()
  return pack({ jobs = documents_of(there), expired = gone })
end

function operations.AddTags(fields)
  return pack(change.add_tags(fields[1], fields[2]))
end

function operations.RemoveTags(fields)
  return pack(change.remove_tags(fields[1], fields[2]))
end

function operations.Tagged(fields)
  local total, jids = read.tagged(fields[1], page_from(fields[2]))
  return pack({ total = total, jids = jids })
end

function operations.TopTags(fields)
  return pack(read.top_tags(page_from(fields[1])))
end

function operations.Get(fields)
  return pack(job_of(fields[1]))
end

function operations.GetMany(fields)
  return pack(documents_of(fields[1]))
end

function operations.Length(fields)
  return pack(read.length(fields[1]))
end

function operations.Jobs(fields)
  local which, queue = variant(fields[1])
  return pack(read.jobs(which:lower(), queue, page_from(fields[2])))
end

-- A map; Lua would make a list of an empty one.
local function packed_map(pairs_of)
  if next(pairs_of) == nil then return '\128' end
  return pack(pairs_of)
end

function operations.Failures()
  return packed_map(read.failures())
end

function operations.Failed(fields)
  local total, jids = read.failed(fields[1], page_from(fields[2]))
  return pack({ total = total, jids = jids })
end

function operations.Queues(fields)
  return pack(read.queues(fields[1]))
end

function operations.Workers()
  return pack(read.workers())
end

function operations.WorkerJobs(fields)
  return pack(read.worker_jobs(fields[1]))
end

function operations.Stats(fields)
  return pack(stats.report(fields[1], fields[2]))
end

function operations.Pause(fields)
  change.pause(fields[1], true)
  return NIL
end

function operations.Resume(fields)
  change.pause(fields[1], false)
  return NIL
end

function operations.ForgetQueues(fields)
  change.forget_queues(fields[1])
  return NIL
end

function operations.ForgetWorkers(fields)
  change.forget_workers(fields[1])
  return NIL
end

function operations.GetConfig(fields)
  local value, chosen = option.get(fields[1])
  if value == nil then return NIL end
  return pack({ [chosen and 'Chosen' or 'Default'] = tostring(value) })
end

function operations.AllConfig()
  local all = {}
  for name, value in pairs(option.listed) do all[name] = { Default = tostring(value) } end
  for name, value in pairs(option.all()) do all[name] = { Chosen = value } end
  return pack(all)
end

function operations.SetConfig(fields)
  check_size('value', fields[2])
  option.set(fields[1], fields[2], fields[3])
  return NIL
end

function operations.UnsetConfig(fields)
  option.unset(fields[1])
  return NIL
end

local function interval_of(every)
  local _, interval = variant(every)
  return interval
end

function operations.Recur(fields)
  recur.recur({ queue = fields[1], jid = fields[2], klass = fields[3], data = fields[4],
    interval = interval_of(fields[5]), offset = fields[6] or 0,
    priority = fields[7] or 0, retries = fields[8] or 0, tags = list_of(fields[9]), backlog = fields[10]
      or 0 })
  return NIL
end

function operations.Unrecur(fields)
  recur.unrecur(fields[1])
  return NIL
end

function operations.GetRecurring(fields)
  local of = recur.get(fields[1])
  if not of then return NIL end
  return pack({ jid = of.jid, queue = of.queue, klass = of.klass, payload = of.data, priority = of.priority,
    retries = of.retries, tags = tags_from(of.tags_text),
    every = { Interval = of.interval }, backlog = of.backlog, count = of.count, next = of.next })
end

function operations.UpdateRecurring(fields)
  recur.update(fields[1], { priority = fields[2], retries = fields[3],
    interval = fields[4] and interval_of(fields[4]), backlog = fields[5],
    data = fields[6], klass = fields[7], queue = fields[8] })
  return NIL
end

function operations.TagRecurring(fields)
  return pack(recur.tag(fields[1], fields[2]))
end

function operations.UntagRecurring(fields)
  return pack(recur.untag(fields[1], fields[2]))
end

function operations.Attach(fields)
  local jid, waiter = fields[1], waiter_of(fields[2], { 'Attach', 2 })
  local of = job.load(jid)
  if of and job.is_unfinished(of) then
    put_options.attach(of, waiter)
    return pack('Attached')
  end
  local kept = put_options.result(jid)
  if not of and not kept then refuse('NoSuchJob', { jid = jid }) end
  return pack({ Ended = { state = of and job.state_of(of), kept = kept } })
end

function operations.Leave(fields)
  local kind, who = variant(fields[1])
  if kind == 'Front' then
    who = waiter_of({ who }, { 'Leave', 1 })
    who = { who.Front or who[1] }
  elseif who then
    who = waiter_of(who, { 'Leave', 1, kind })
  end
  return pack(put_options.detach_all(kind, who))
end

-- Progress as it is shown. Numbers beyond 2^53 are rounded, and those beyond 2^63 are clamped.
local function progress_of(value)
  local function whole(number) return number >= 0 and number < PORTION_MAX and number or PORTION_MAX end
  return { portion = { whole(value[1][1]), whole(value[1][2]) }, seconds_left = value[2] }
end

function operations.Progress(fields)
  check_payload(fields[4], 'progress')
  local of = finish.held_job(fields[1], holder_of(fields[2]))
  local progress = progress_of(fields[3])
  local token, attempt = job.token(of), job.attempt(of)
  attempt.progress = progress
  -- A job that a foreign script popped has no token to store it under.
  if token then job.set_attempt(of, token, attempt) end
  put_options.deliver(of, { Progress = { progress = progress, said = fields[4] } })
  if publish.has_event_subscribers() then publish.event('Progress', { jid = of.jid, progress = progress }) end
  return NIL
end

function operations.Chunk(fields)
  check_payload(fields[4], 'chunk')
  local of = finish.held_job(fields[1], holder_of(fields[2]))
  return pack(put_options.deliver(of, { Chunk = { fields[3], fields[4] } }))
end

function operations.HandBack(fields)
  local delay = fields[4] or 0
  if delay < 0 then bad('delay', 'must not be negative, and is ' .. exact(delay) .. ' seconds') end
  check_delay(delay)
  check_size('message', fields[3])
  finish.hand_back({ jid = fields[1], holder = holder_of(fields[2]), message = fields[3], delay = delay })
  return NIL
end

function operations.Relock(fields)
  local before = fields[4]
  local locked = pop.relock({ worker = fields[1], queues = list_of(fields[2]), count = fields[3],
    before = before and match(before, '^%d+'), show = packed_popped })
  table.insert(locked, 1, packed_head(#locked, 144, 220))
  return locked
end

function operations.Gone(fields)
  return pack(capabilities.worker_lost(fields[1], fields[2]))
end

function operations.Announce(fields)
  local kind, abilities = variant(fields[2])
  capabilities.announce(fields[1], { [kind:lower()] = list_of(abilities) })
  return NIL
end

function operations.RollCall(fields)
  return pack(capabilities.count(fields[1], fields[2]))
end

function operations.Announced(fields)
  return pack(capabilities.announced(fields[1]))
end

function operations.SetLimits(fields)
  local limits = fields[2]
  capabilities.set_limits(fields[1], { jobs_max = limits[1], by_priority = list_of(limits[2]),
    rate = limits[3] })
  return NIL
end

function operations.GetLimits(fields)
  local limits = capabilities.limits(fields[1]) or { by_priority = {} }
  return pack({ jobs_max = limits.jobs_max, by_priority = limits.by_priority, rate = limits.rate })
end

function operations.GetResult(fields)
  return pack(put_options.result(fields[1]))
end

function operations.Status(fields)
  local kind, inside = variant(fields[1])
  local of
  if kind == 'Unique' then
    of = put_options.holder(inside[1], inside[2])
  else
    of = job.load(inside)
  end
  if not of or not job.is_unfinished(of) then return NIL end
  return pack({ jid = of.jid, queue = of.queue, state = job.state_of(of), progress = job.attempt(of).progress,
    submissions = 1 + (of.terms and of.terms.joined or 0), attached = of.waits })
end

function operations.Why(fields)
  return pack(why.why(fields[1]))
end

function operations.Tick(fields)
  local done, at = tick.tick(fields[1])
  return pack({ done = done, next = at })
end

function operations.Allot(fields)
  return pack(change.allot(fields[1], fields[2]))
end

function operations.Canceled(fields)
  return pack(canceled.get(fields[1]))
end

function operations.Flush(fields)
  return pack(change.flush(fields[1]))
end

-- Fails if the put of a template would be refused at every run.
local function check_template(fields)
  check_payload(fields[4])
  check_retries(fields[7])
  if fields[8] then at_most('tags', #fields[8], TAGS_MAX) end
  if fields[13] then terms_of(fields[13]) end
end

function operations.PutPeriodic(fields)
  return pack(periodic.put(fields[1], fields[2], fields[3], fields[4], check_template))
end

function operations.RemovePeriodic(fields)
  return pack(periodic.remove(fields[1]))
end

function operations.Periodics(fields)
  return periodic.list(fields[1], fields[2], fields[3] or 1)
end

function operations.DuePeriodics(fields)
  return periodic.due(fields[1] or 1)
end

function operations.FirePeriodic(fields)
  local is_stale, jobs = periodic.fire(fields[1], fields[2], list_of(fields[3]), fields[4], put_fields)
  return '\146' .. pack(is_stale) .. pack(jobs)
end

function operations.Figures(fields)
  return pack(figures.figures(fields[1]))
end

function operations.WhyQueue(fields)
  return pack(figures.why_queue(fields[1]))
end

function operations.PriorityCounts(fields)
  pop.promote(fields[1])
  return pack(order.by_priority(fields[1]))
end

-- The packed reply in pieces, because the jobs may be many.
function operations.SetAside(fields)
  local pieces, stay = set_aside.set(list_of(fields[1]), fields[2])
  table.insert(pieces, 1, '\146' .. packed_head(#pieces, 144, 220))
  pieces[#pieces + 1] = pack(stay)
  return pieces
end

function operations.EndSetAside(fields)
  return pack(set_aside.finish(list_of(fields[1]), fields[2]))
end

function operations.Select(fields)
  return pack(select.select(list_of(fields[1]), fields[2], fields[3] or 1))
end

function operations.Act(fields)
  return pack(select.act(list_of(fields[1]), fields[2], fields[3] or 1, fields[4], list_of(fields[5])))
end

-- Requests --------------------------------------------------------------------------------------------------

-- A refusal, packed; raises an error if it is not one.
local function refusal(reply)
  if type(reply) == 'table' and reply.refused then return pack({ [reply.refused] = reply.fields }) end
  error(reply)
end

-- Runs a function that may refuse. Returns whether it did not, and its result.
local function attempt(execute, ...)
  local done, reply = pcall(execute, ...)
  if done then return true, reply end
  return false, refusal(reply)
end
native.attempt = attempt

local OK, ERR = '\129' .. pack('Ok'), '\129' .. pack('Err')
local heads_of_answers = {}

-- The head of an operation's answer.
function native.answered(name)
  local head = heads_of_answers[name]
  if not head then
    head = OK .. '\129' .. pack(name)
    heads_of_answers[name] = head
  end
  return head
end

function native.refused(reply)
  return ERR .. refusal(reply)
end

local requests = {}

function requests.Batch(calls)
  return batch.run(calls)
end

-- A parked pop of no jobs waits for readiness. Many of one process may wait for the same queues, so each
-- queue is checked once.
local function wait_for_readiness(process, queues, seconds)
  local done, refusal = attempt(pop.check_queues, queues)
  if not done then return '\129' .. pack('Refused') .. refusal end
  local earliest = huge
  for _, queue in ipairs(queues) do
    local due = cache.empty[queue]
    if not due then
      if pop.is_ready(queue) then return '\129' .. pack('Popped') .. '\146' .. packed_array({}) .. pack(0) end
      due = read.next_due({ queue }) or huge
      cache.empty[queue] = due
    end
    if due < earliest then earliest = due end
  end
  if not seconds or seconds > 0 then parked.watch(process, queues) end
  return '\129' .. pack('Asleep') .. '\145' .. (earliest < huge and pack(earliest) or NIL)
end

-- Each parked pop is tried. One that finds nothing is parked, and the reply says when something falls due.
local function park(process, number, asked, seconds)
  if asked[3] == 0 then return wait_for_readiness(process, asked[1], seconds) end
  cache.empty = {}
  local count
  local function once()
    local reply
    reply, count = pop_from_fields(asked)
    return reply
  end
  local done, reply = attempt(once)
  -- A pop for one job must not delay the warnings of other holders.
  local of = { queues = asked[1], worker = asked[2], klasses = asked[6] }
  while done and count == 0 and pop.has_expired(of) do done, reply = attempt(once) end
  if not done then return '\129' .. pack('Refused') .. reply end
  if count > 0 then
    parked.unpark(process, number)
    return '\129' .. pack('Popped') .. table.concat(reply)
  end
  -- The last attempt of a pop is not parked again.
  if seconds and seconds <= 0 then parked.unpark(process, number) else parked.park(process, number,
    klasses.lines(of)) end
  -- While an index by klass is unfinished, the next request goes on with it at once.
  return '\129' .. pack('Asleep') .. '\145' .. pack(cache.unfinished and now or read.next_due(asked[1]))
end

function requests.Wait(fields)
  now = moment(fields[2])
  if fields[4] then tick.tick(TICK_MAX) end
  local answers = {}
  for place, one in ipairs(fields[3]) do answers[place] = park(fields[1], one[1], one[2], one[3]) end
  return packed_array(answers)
end

function requests.Awake(fields)
  parked.unpark(fields[1], fields[2])
  return NIL
end

function requests.Listen(fields)
  now = moment(fields[1])
  return pack(events.subscribe())
end

function requests.Since(fields)
  if int64.is(fields[1]) then
    -- No position is that large; it is returned as it was sent.
    local given, newest = int64.request()[2].Since[1], events.last()
    return ERR .. '\129' .. pack('CursorAhead') .. '\130' .. pack('after') .. int64.pack(int64.digits(given))
      .. pack('newest') .. pack(newest)
  end
  local done, reply = attempt(events.after, fields[1], fields[2])
  if not done then return ERR .. reply end
  return OK .. packed_array(reply)
end

function native.execute(bytes)
  cache.request = bytes
  local read_it, request = pcall(cmsgpack.unpack, bytes)
  if not read_it or type(request) ~= 'table' then fail_with('what came cannot be read as MessagePack') end
  if request[1] ~= VERSION then
    fail_with('this is version ' .. tostring(request[1]) .. ' of the wire, and version ' .. VERSION
      .. ' is spoken here')
  end
  local name, fields = variant(request[2])
  if not requests[name] then fail_with('there is no request ' .. tostring(name)) end
  return requests[name](fields or {})
end
