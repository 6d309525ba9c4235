-- Putting a job into a queue, for the first time or again.

-- Replaces an existing job: removes it from its place. Returns its old state.
local function detach_replaced(of, asked, open)
  local jid = of.jid
  local tags, failure = job.more(of, 'tags', 'failure')
  of.tags = tags and tags ~= '{}' and cjson.decode(tags) or {}
  for _, tag in ipairs(of.tags) do job.unindex_tag(jid, tag) end
  if #asked.depends > 0 then
    local kept = set_of(asked.depends)
    for _, on in ipairs(job.dependencies(jid)) do
      if not kept[on] then job.unlink(jid, on) end
    end
  end
  if of.state == 'complete' then
    zset.remove(key.completed, jid)
    cache.complete = nil
  elseif of.state == 'running' then
    attempts.add(of, 'PutAgain')
    job.clear_warning(of)
    put_options.end_attempt(of)
    job.forget_ended(of)
  elseif of.state == 'failed' then
    -- The new queue, not the old one, as in Qless.
    job.leave_group(of, failure, asked.queue)
    set_aside.left(of, policies.failure_of(jid))
    if of.terms and of.terms.upstream then
      local group = policies.failure_of(jid)
      of.again = policies.take_dropped(of, group)
    end
  end
  put_options.release_key(of)
  put_options.unindex_expiry(of)
  job.detach(of)
  if of.worker ~= '' then zset.remove(jobs_of(of.worker), jid) end
end

local NOTHING = {}
local NO_TAGS = list_text(NOTHING)
local RETRIES = 5 -- default of a new job
local USUAL_RETRIES = stored(RETRIES)

-- Writes the hash of a job. Numbers are text.
local function write(at, jid, klass, data, priority, tags, state, queue, retries, time)
  call('HSET', at, 'jid', jid, 'klass', klass, 'data', data, 'priority', priority, 'tags', tags, 'state',
    state, 'worker', '', 'expires', '0', 'queue', queue, 'retries', retries, 'remaining', retries, 'time',
    time)
end

local function publish_put(jid, queue)
  if publish.has_no_subscribers() then return end
  if publish.has_subscribers() then
    publish.message(key.log, '{"jid":' .. quote(jid) .. ',"event":"put","queue":' .. quote_name(queue) .. '}')
  end
  if publish.has_event_subscribers() then publish.event('Put', { jid = jid, queue = queue }) end
end

-- What is the same for all puts into a queue at one time.
local function context_of(queue)
  local context = cache.put_context
  if context and context.now == now and context.queue == queue then return context end
  order.check_type(queue)
  job.register(queue)
  context = { queue = queue, now = now, entry = job.put_entry(queue), time = job.time_text() }
  cache.put_context = context
  return context
end

-- Creates a waiting job without options. Nearly all are like that.
local function create(context, at, jid, klass, data, priority, priority_text, retries)
  local queue, is_silent = context.queue, cache.unpublished or publish.is_not_needed()
  call('RPUSH', at .. '-history', context.entry)
  if not is_silent then publish_put(jid, queue) end
  write(at, jid, klass, data, priority_text, NO_TAGS, 'waiting', queue, retries, context.time)
  order.enter(queue, jid, priority, now)
  if not is_silent then publish.milestone(jid, 'Put') end
end

-- The keys of a run of puts, if none of the jobs exists and only Redis itself could refuse them.
local function keys_if_new(run)
  if capabilities.limits(run.queue) then return nil end
  local list, seen, keys = run.list, {}, {}
  for place = 1, run.count do
    local jid = list[2 * place - 1]
    if seen[jid] or #list[2 * place] > PAYLOAD_BYTES_MAX then return nil end
    seen[jid], keys[place] = true, key.job .. jid
  end
  -- One look tells that there are neither such jobs nor tombstones.
  keys[run.count + 1] = key.canceled
  if not any_exists(keys) then return keys end
  keys[run.count + 1] = nil
  if any_exists(keys) then return nil end
  local jids = {}
  for place = 1, run.count do jids[place] = list[2 * place - 1] end
  canceled.forget_all(jids)
  return keys
end

-- Executes a run of plain puts from an index on, if all jobs are new; otherwise none. Returns the index of
-- the last one executed.
function put.run(run, first)
  -- If one of them exists, the others are not checked again.
  if first > 1 then return first - 1 end
  local keys = keys_if_new(run)
  if not keys then return 0 end
  local context, list, klass = context_of(run.queue), run.list, run.klass
  for place = 1, run.count do
    run.place = place
    create(context, keys[place], list[2 * place - 1], klass, list[2 * place], 0, '0', USUAL_RETRIES)
  end
  return run.count
end

-- Fails if a key that a put will write has another type. Plain puts do not come here.
local function check_types(of, asked, open)
  local queue, terms = asked.queue, asked.terms
  local keys = keys_of(queue)
  order.check_type(queue)
  zset.check_type(keys.scheduled)
  zset.check_type(keys.depends)
  zset.check_type(key.queues)
  job.check_tag_types(asked.tags)
  local at = key.job .. asked.jid
  call('SCARD', at .. '-dependencies')
  for _, on in ipairs(open or NOTHING) do call('SCARD', key.job .. on .. '-dependents') end
  if of then
    job.check_type(of)
    zset.check_type(key.completed)
    job.check_tag_types(job.tags(of))
    for _, on in ipairs(job.dependencies(of.jid)) do call('SCARD', key.job .. on .. '-dependents') end
  end
  if terms then
    zset.check_type(key.expiries)
    zset.check_type(key.waiters)
    if terms.unique then call('HLEN', key.unique .. queue) end
    if terms.attach then call('LLEN', key.waiting .. asked.jid) end
  end
end

-- asked: queue, jid, klass, data, delay, priority, retries, tags, depends, caller, existing, cycles, terms
function put.put(asked)
  local jid, queue, terms = asked.jid, asked.queue, asked.terms
  local at = key.job .. jid
  local failure = terms and terms.failure
  if failure and (asked.existing ~= 'Keep' or #asked.depends > 0 or asked.delay > 0) then
    bad('failure', 'is for new jobs without dependencies and delay')
  end
  -- Most jobs are new, and mostly there are no tombstones either.
  local found = call('EXISTS', at, key.canceled)
  local of = found > 0 and job.load(jid) or nil
  if of and asked.existing == 'Keep' then return put_options.join_existing(of, terms) end
  if not of and asked.existing == 'Require' then refuse('NoSuchJob', { jid = jid }) end
  if terms then
    local joined = put_options.check_put(of, asked)
    if joined then return joined end
  end
  if not of then capabilities.check_limits(queue, asked.priority or 0) end
  local open
  if #asked.depends > 0 then
    open = job.incomplete(jid, asked.depends)
    job.check_cycles(jid, open, asked.cycles)
  end

  local delay = asked.delay
  local has_tombstone = found > 0 and not of
  if not of and not terms and not open and delay <= 0 and not (asked.tags and asked.tags[1]) then
    if has_tombstone then canceled.forget(jid) end
    local priority = asked.priority or 0
    create(context_of(queue), at, jid, asked.klass, asked.data, priority, stored(priority),
      stored(asked.retries or RETRIES))
    return 'Created'
  end
  check_types(of, asked, open)
  if has_tombstone then canceled.forget(jid) end
  if of then job.append(at, job.put_entry(queue)) else job.begin_history(jid, job.put_entry(queue)) end
  publish_put(jid, queue)
  local priority, retries, tags = asked.priority, asked.retries, asked.tags
  if of then
    detach_replaced(of, asked)
    if of.worker ~= '' and of.worker ~= asked.caller then
      publish.lock_lost(jid, of.worker)
      if publish.has_event_subscribers() then publish.event('LockLost', { jid = jid, worker = of.worker }) end
    end
    priority = priority or tonumber(of.priority)
    retries = retries or tonumber(of.retries)
    tags = tags or of.tags
  else
    -- Whatever a foreign script left behind does not belong to a new job.
    of = { jid = jid, at = at, waits = 0, new = true }
  end
  priority, retries, tags = priority or 0, retries or RETRIES, tags or NOTHING
  if #tags > 0 then job.index_tags(jid, tags) end

  local depends = false
  if open then
    for _, on in ipairs(open) do job.link(jid, on) end
  elseif of.again then
    for _, on in ipairs(of.again) do job.link(jid, on) end
  end
  if #asked.depends > 0 or not of.new then depends = call('SCARD', at .. '-dependencies') > 0 end
  local due = delay > 0 and finite(now + delay) or nil
  local state = depends and 'depends' or due and 'scheduled' or 'waiting'
  write(at, jid, asked.klass, asked.data, stored(priority), list_text(tags), state, queue, stored(retries),
    job.time_text())
  of.state, of.queue, of.klass, of.worker = state, queue, asked.klass, ''

  if terms then
    of.terms = put_options.stored(terms)
    of.terms.waits = of.waits > 0 and of.waits or nil
    put_options.write(of)
  elseif of.terms then
    put_options.clear_expiry(of)
  end
  if depends then
    zset.add(keys_of(queue).depends, now, jid)
    if due then call('HSET', at, 'scheduled', due) end
    if of.terms then policies.enter(of) end
  elseif due then
    put.schedule(of, due)
  else
    order.enter(queue, jid, priority, now)
    if of.terms then put_options.index_expiry(of) end
  end
  job.register(queue)
  publish.milestone(jid, 'Put')
  if terms and terms.attach then put_options.attach(of, terms.attach) end
  if of.terms then put_options.claim_key(of) end
  if failure then
    job.check_group_type(failure[1])
    finish.give_up(of, failure[1], failure[2], 'Moved')
  end
  return of.new and 'Created' or 'Replaced'
end

-- Makes a job waiting whose dependencies are complete.
function put.release(of)
  call('HSET', of.at, 'state', 'waiting')
  of.state = 'waiting'
  order.enter(of.queue, of.jid, tonumber(of.priority), now)
  put_options.index_expiry(of)
end

-- Schedules a job in its queue.
function put.schedule(of, due)
  local queue = of.queue
  zset.add(keys_of(queue).scheduled, due, of.jid)
  local first = cache.due[queue]
  if first and due < first then cache.due[queue] = due end
  -- Parked pops must learn when it falls due.
  out.ready[queue] = (out.ready[queue] or 0) + 1
  put_options.index_expiry(of)
end
