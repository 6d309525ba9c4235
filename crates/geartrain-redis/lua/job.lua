-- A job: its hash, history, tags, dependencies, and lock.

local CYCLE_WALK_MAX = 10000
local HISTORY_BYTES_MAX = 262144
local EXACT_MAX = 9007199254740992 -- up to here a double holds every integer

-- The fields of a full load. Reading a missing field scans the whole hash, so callers that need fewer ask for
-- fewer.
local ALL = { 'state', 'queue', 'worker', 'time', 'retries', 'grace', 'gt-more', 'remaining', 'priority',
  'klass', 'gt-lock', 'expires', 'scheduled',
  'gt-ended', 'data' }

local function unpacked(more)
  return more and cmsgpack.unpack(more) or nil
end

-- Loads a job, or nil. `data` only on request, because it may be large.
function job.load(jid, with_data)
  local at = key.job .. jid
  local found = call('HMGET', at, unpack(ALL, 1, with_data and 15 or 14))
  if not found[1] then return nil end
  local terms = unpacked(found[7])
  return {
    jid = jid, at = at, state = found[1], queue = found[2] or '', worker = found[3] or '',
    time = found[4] or '0', retries = found[5] or '0', grace = found[6] == '1', terms = terms,
    waits = terms and terms.waits or 0, remaining = found[8] or '0',
      priority = found[9] or '0',
    klass = found[10] or '', lock = found[11], expires = found[12] or '', scheduled = found[13],
      ended = found[14], data = found[15],
  }
end

-- The fields that a pop needs: state, queue, worker, time, retries, grace, gt-more, remaining, priority,
-- klass, data.
function job.read_waiting(at)
  return call('HMGET', at, 'state', 'queue', 'worker', 'time', 'retries', 'grace', 'gt-more', 'remaining',
    'priority', 'klass', 'data')
end

-- A job from these fields, or nil.
function job.waiting(jid, at, found)
  if not found[1] then return nil end
  local terms = unpacked(found[7])
  return {
    jid = jid, at = at, state = found[1], queue = found[2] or '', worker = found[3] or '',
    time = found[4] or '0', retries = found[5] or '0', grace = found[6] == '1', terms = terms,
    waits = terms and terms.waits or 0, remaining = found[8] or '0',
      priority = found[9] or '0',
    klass = found[10] or '', data = found[11],
  }
end

-- The fields that a holder's command needs: state, queue, worker, time, retries, grace, gt-more, gt-lock.
function job.read_held(at)
  return call('HMGET', at, 'state', 'queue', 'worker', 'time', 'retries', 'grace', 'gt-more', 'gt-lock')
end

-- A job from these fields, or nil.
function job.load_held(jid)
  local at = key.job .. jid
  local found = job.read_held(at)
  if not found[1] then refuse('NoSuchJob', { jid = jid }) end
  local terms = unpacked(found[7])
  return {
    jid = jid, at = at, state = found[1], queue = found[2] or '', worker = found[3] or '',
    time = found[4] or '0', retries = found[5] or '0', grace = found[6] == '1', terms = terms,
    waits = terms and terms.waits or 0, lock = found[8],
  }
end

function job.exists(jid)
  return call('HEXISTS', key.job .. jid, 'state') == 1
end

function job.existing(jid)
  local of = job.load(jid)
  if not of then refuse('NoSuchJob', { jid = jid }) end
  return of
end

-- The state in our words: Qless's differ for a timed-out job, and for one that was advanced with a delay.
function job.state_of(of)
  local state = of.state
  if state == 'stalled' then return 'Waiting' end
  if state == 'waiting' and zset.score(key.queue .. of.queue .. '-scheduled', of.jid) then
    return 'Scheduled'
  end
  return state:sub(1, 1):upper() .. state:sub(2)
end

function job.is_unfinished(of)
  return of.state ~= 'complete' and of.state ~= 'failed'
end

-- Fields that are rarely read.
function job.more(of, ...)
  return unpack(call('HMGET', of.at, ...))
end

-- Registers a queue, unless it is registered.
function job.register(queue)
  if not cache.registered[queue] then
    cache.registered[queue] = true
    call('ZADD', key.queues, 'NX', now, queue)
  end
end

-- The current time as the field `time` stores it.
function job.time_text()
  if cache.time ~= now then
    cache.time = now
    cache.time_text = string.format('%.20f', now)
  end
  return cache.time_text
end

-- History ---------------------------------------------------------------------------------------------------

-- The start of an entry, which is the same for all entries of one time.
local function entry_at(at)
  if cache.entry_moment ~= at then
    cache.entry_moment = at
    cache.entry_text = '[' .. exact(floor(at)) .. ','
  end
  return cache.entry_text
end

-- The limit of history entries.
local function history_max()
  local max = floor(option.number('max-job-history'))
  cache.history_max = max > 0 and max or huge
  return cache.history_max
end

-- Appends an encoded entry to the history of the job with this key, and drops old ones.
function job.append(at, entry)
  local count = call('RPUSH', at .. '-history', entry)
  if count > 1 and count <= (cache.history_max or history_max()) then return end
  if count == 1 then job.migrate(at) end
  local max = cache.history_max or history_max()
  if count <= max then return end
  local history = at .. '-history'
  local first = call('LINDEX', history, 0)
  if max == 1 then
    call('LTRIM', history, -1, -1)
  else
    call('LTRIM', history, 1 - max, -1)
    call('LPUSH', history, first)
  end
end

-- The first entry of a new job.
function job.begin_history(jid, entry)
  call('RPUSH', key.job .. jid .. '-history', entry)
end

-- Consecutive entries are mostly alike, so the last of each kind is cached.
local function entry_with(at, what, name, behind)
  local last = cache.entries[what]
  if last and last.at == at and last.name == name then return last.text end
  local text = entry_at(at) .. what .. (name ~= '' and quote_name(name) or '') .. behind
  cache.entries[what] = { at = at, name = name, text = text }
  return text
end

function job.put_entry(queue, at)
  return entry_with(at or now, '"put",{"q":', queue, '}]')
end

function job.popped_entry(worker)
  return entry_with(now, '"popped",{"worker":', worker, '}]')
end

function job.done_entry()
  return entry_with(now, '"done"', '', ']')
end

function job.timed_out_entry()
  return entry_at(now) .. '"timed-out"]'
end

function job.failed_entry(group, worker)
  local who = worker and '"worker":' .. quote_name(worker) .. ',' or ''
  return entry_at(now) .. '"failed",{' .. who .. '"group":' .. quote(group) .. '}]'
end

-- A logged entry starts with a blank, which JSON ignores, and which tells it from entries of the queue.
function job.log_entry(message, data)
  return entry_at(now) .. ' ' .. quote(message) .. (data and ',' .. data or '') .. ']'
end

-- Bounds a history with logged entries. The first entry and the newest stay.
function job.bound_history(jid)
  local at = key.job .. jid .. '-history'
  local entries = call('LRANGE', at, 0, -1)
  local bytes, kept = #(entries[1] or ''), 0
  for place = #entries, 2, -1 do
    bytes = bytes + #entries[place]
    if bytes > HISTORY_BYTES_MAX and kept > 0 then break end
    kept = kept + 1
  end
  if kept < #entries - 1 then
    call('LTRIM', at, -kept, -1)
    call('LPUSH', at, entries[1])
  end
end

-- Moves a history in the format of older scripts, if there is one, to the start of the list.
function job.migrate(at)
  local text = call('HGET', at, 'history')
  if not text then return end
  local entries = {}
  local function add(moment, what, name, value)
    if type(moment) ~= 'number' then return end
    local fields = name and value and ',{"' .. name .. '":' .. cjson.encode(value) .. '}' or ''
    entries[#entries + 1] = '[' .. string.format('%.14g', floor(moment)) .. ',"' .. what .. '"' .. fields
      .. ']'
  end
  for _, stay in ipairs(cjson.decode(text)) do
    add(stay.put, 'put', 'q', stay.q)
    add(stay.popped, 'popped', 'worker', stay.worker)
    add(stay.failed, 'failed')
    add(stay.done, 'done')
  end
  for place = #entries, 1, -1 do call('LPUSH', at .. '-history', entries[place]) end
  call('HDEL', at, 'history')
end

-- Tags ------------------------------------------------------------------------------------------------------

function job.tags(of)
  local text = call('HGET', of.at, 'tags')
  return text and text ~= '{}' and cjson.decode(text) or {}
end

function job.index_tag(jid, tag)
  zset.add(key.tag .. tag, now, jid)
  call('ZINCRBY', key.tags, 1, tag)
end

function job.unindex_tag(jid, tag)
  zset.remove(key.tag .. tag, jid)
  call('ZINCRBY', key.tags, -1, tag)
end

function job.index_tags(jid, tags)
  for _, tag in ipairs(tags) do job.index_tag(jid, tag) end
end

function job.unindex_tags(of)
  for _, tag in ipairs(job.tags(of)) do job.unindex_tag(of.jid, tag) end
end

-- Dependencies ----------------------------------------------------------------------------------------------

function job.dependencies(jid)
  return sorted(call('SMEMBERS', key.job .. jid .. '-dependencies'))
end

-- The dependents of a job. Dropped jobs and foreign scripts leave one side of a dependency behind; only what
-- both sides state counts.
function job.dependents(jid)
  local found = call('SMEMBERS', key.job .. jid .. '-dependents')
  if #found == 0 then return found end
  local real = {}
  for _, dependent in ipairs(sorted(found)) do
    if call('SISMEMBER', key.job .. dependent .. '-dependencies', jid) == 1 then
      real[#real + 1] = dependent
    end
  end
  return real
end

function job.link(jid, on)
  cache.alone = nil
  call('SADD', key.job .. on .. '-dependents', jid)
  call('SADD', key.job .. jid .. '-dependencies', on)
end

function job.unlink(jid, on)
  call('SREM', key.job .. on .. '-dependents', jid)
  call('SREM', key.job .. jid .. '-dependencies', on)
end

-- Those of the jobs that exist and are not complete. The job itself counts as existing.
function job.incomplete(jid, depends)
  local open, seen = {}, {}
  for _, on in ipairs(depends) do
    if not seen[on] then
      seen[on] = true
      local state = on ~= jid and call('HGET', key.job .. on, 'state')
      if on == jid or (state and state ~= 'complete') then open[#open + 1] = on end
    end
  end
  return open
end

-- Refuses a cycle of dependencies.
function job.check_cycles(jid, open, cycles)
  if cycles == 'Accept' or #open == 0 then return end
  -- A job without dependents closes no cycle.
  if not contains(open, jid) and call('EXISTS', key.job .. jid .. '-dependents') == 0 then return end
  local seen, count = {}, 0
  for _, through in ipairs(open) do
    local ahead = { through }
    while #ahead > 0 do
      local at = table.remove(ahead)
      if at == jid then refuse('Cycle', { jid = jid, through = through }) end
      if not seen[at] then
        seen[at] = true
        count = count + 1
        if count > CYCLE_WALK_MAX then refuse('TooManyDependencies', { jid = jid, max = CYCLE_WALK_MAX }) end
        for _, on in ipairs(call('SMEMBERS', key.job .. at .. '-dependencies')) do ahead[#ahead + 1] = on end
      end
    end
  end
end

-- Locks and holders -----------------------------------------------------------------------------------------

-- The last three digits of numbers, because consecutive tokens differ in those only. A script is defined anew
-- by every call, so tables are filled on first use, here and elsewhere.
local last_digits = {}

-- A new token as text. It is unique even if Redis lost the last ones, because it starts from the clock.
function job.new_token()
  local token = (cache.token or tonumber(call('GET', key.token)) or 0) + 1
  if cache.token_moment ~= now then
    local clock = floor(now * 1e6)
    if clock > token and clock < EXACT_MAX then token = clock end
    cache.token_moment, cache.new_tokens = now, true
  end
  cache.token = token
  local last = token % 1000
  local first = (token - last) / 1000
  if cache.token_first ~= first then
    cache.token_first = first
    cache.token_text = first > 0 and string.format('%.0f', first) or ''
  end
  if first == 0 then return tostring(token) end
  local digits = last_digits[last]
  if not digits then
    digits = string.format('%03d', last)
    last_digits[last] = digits
  end
  return cache.token_text .. digits
end

-- The token of a job's lock, as text; nil if a foreign script popped the job, which changed the worker or the
-- time.
function job.token(of)
  local lock = of.lock
  if not lock or of.state ~= 'running' then return nil end
  local token = lock:match('^%d+')
  if token and lock == token .. ' ' .. of.time .. ' ' .. of.worker then return token end
  return nil
end

-- Whether the holder has the lock.
function job.is_held(of, holder)
  local token = holder.token
  if token then return of.state == 'running' and of.lock == token .. ' ' .. of.time .. ' ' .. of.worker end
  return of.state == 'running' and of.worker == holder.worker
end

-- Refuses a caller without the lock.
function job.refuse_holder(of, holder)
  if holder.token then refuse('LockLost', { jid = of.jid, state = job.state_of(of) }) end
  if of.state ~= 'running' then
    refuse('NotRunning', { jid = of.jid, state = job.state_of(of), qless = of.state })
  end
  refuse('HeldByAnother', { jid = of.jid, worker = holder.worker, holder = of.worker })
end

function job.check_queue(of, given)
  if given and given ~= of.queue then
    refuse('WrongQueue', { jid = of.jid, queue = of.queue, given = given })
  end
end

-- How the attempt with this token ended, if it has and no later one has.
function job.ended(of, holder)
  if not holder.token then return nil end
  local token, how = (call('HGET', of.at, 'gt-ended') or ''):match('^(%d+) (%a+)$')
  if token == holder.token then return how end
  return nil
end

-- Whether the holder's attempt ended by its deadline and the job waits for its next one: then it may still
-- complete or fail the job. A foreign script that popped or put it since has changed its worker or time.
function job.is_late(of, holder)
  if of.state ~= 'waiting' and of.state ~= 'scheduled' then return false end
  local token = holder.token
  return token and of.lock == token .. ' ' .. of.time .. ' ' .. of.worker
    and job.ended(of, holder) == 'deadline'
end

-- Removes that, because a later attempt has ended.
function job.forget_ended(of)
  call('HDEL', of.at, 'gt-ended')
end

-- The current attempt: its deadline and progress. Those of earlier attempts do not count.
function job.attempt(of)
  local attempt = of.terms and of.terms.attempt
  if attempt and attempt.token == job.token(of) then return attempt end
  return {}
end

function job.set_attempt(of, token, attempt)
  attempt.token = token
  of.terms = of.terms or {}
  of.terms.attempt = attempt
  put_options.write(of)
end

-- Removes the warning of a worker that no longer has the job.
function job.clear_warning(of)
  if of.grace and of.worker ~= '' then call('SREM', key.warned .. of.worker, of.jid) end
end

-- Fails if a key that a command on one job will write has another type. Commands that come in thousands check
-- only what they write without reading.
function job.check_type(of)
  local queue, terms = of.queue, of.terms
  call('LLEN', of.at .. '-history')
  if queue ~= '' then
    local keys = keys_of(queue)
    zset.check_type(keys.work)
    zset.check_type(keys.locks)
    zset.check_type(keys.scheduled)
    zset.check_type(keys.depends)
    stats.check_type(queue)
  end
  if of.worker ~= '' then zset.check_type(jobs_of(of.worker)) end
  if of.grace then call('SCARD', key.warned .. of.worker) end
  if terms then
    zset.check_type(key.deadlines)
    zset.check_type(key.expiries)
    zset.check_type(key.waiters)
    if terms.unique then call('HLEN', key.unique .. queue) end
  end
end

-- The same for tags.
function job.check_tag_types(tags)
  if not tags or not tags[1] then return end
  zset.check_type(key.tags)
  for _, tag in ipairs(tags) do zset.check_type(key.tag .. tag) end
end

-- The same for a failure group.
function job.check_group_type(group)
  call('SCARD', key.failures)
  call('LLEN', key.group .. group)
end

-- Removes a job from the sorted sets of its queue.
function job.detach(of)
  local queue, jid = of.queue, of.jid
  if queue == '' then return end
  local at = key.queue .. queue
  zset.remove(at .. '-work', jid)
  zset.remove(at .. '-locks', jid)
  zset.remove(at .. '-scheduled', jid)
  zset.remove(at .. '-depends', jid)
  if of.state == 'depends' then policies.leave(of) end
  cache.ahead[queue] = nil
  if of.state == 'running' then order.freed(queue) end
end

-- Removes a job with everything that refers to it, except tracking.
function job.remove(of)
  local jid = of.jid
  local tags, failure = job.more(of, 'tags', 'failure')
  if of.worker ~= '' then zset.remove(jobs_of(of.worker), jid) end
  job.clear_warning(of)
  job.detach(of)
  if of.state == 'failed' then job.leave_group(of, failure, of.queue) end
  if of.state == 'complete' then
    zset.remove(key.completed, jid)
    cache.complete = nil
  end
  if tags and tags ~= '{}' then
    for _, tag in ipairs(cjson.decode(tags)) do job.unindex_tag(jid, tag) end
  end
  for _, on in ipairs(call('SMEMBERS', of.at .. '-dependencies')) do
    call('SREM', key.job .. on .. '-dependents', jid)
  end
  call('DEL', of.at, of.at .. '-history', of.at .. '-dependencies')
  put_options.forget(of)
end

-- Removes a failed job from its group, and from the day's count of failed jobs.
function job.leave_group(of, failure, queue)
  local read, report = pcall(cjson.decode, failure or '')
  if not read or type(report) ~= 'table' or not report.group then return end
  call('LREM', key.group .. report.group, cache.oldest_first and -1 or 0, of.jid)
  if call('EXISTS', key.group .. report.group) == 0 then call('SREM', key.failures, report.group) end
  if type(report.when) == 'number' then stats.count('failed', queue, report.when, -1) end
end

-- A failure as it is stored.
function job.failure_text(group, message, when, worker)
  return '{"group":' .. quote(group) .. ',"message":' .. quote(message) .. ',"when":' .. exact(when)
    .. ',"worker":' .. quote(worker) .. '}'
end
