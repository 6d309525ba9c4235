-- Putting a job into a queue, for the first time or again.

-- Puts a job that is there again: takes it out of where it is. Answers what it was.
local function leave_to_be_put(of, asked, open)
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
    known.complete = nil
  elseif of.state == 'running' then
    job.unwarn(of)
    side.end_attempt(of)
    job.forget_ended(of)
  elseif of.state == 'failed' then
    -- The new queue, not the old one, as in Qless.
    job.leave_group(of, failure, asked.queue)
  end
  side.let_go(of)
  side.leave(of)
  job.detach(of)
  if of.worker ~= '' then zset.remove(jobs_of(of.worker), jid) end
end

local NOTHING = {}
local NO_TAGS = list_text(NOTHING)
local RETRIES = 5 -- of a new job, if nobody says
local USUAL_RETRIES = stored(RETRIES)

-- Writes the hash of a job that is put. Numbers are text.
local function write(at, jid, klass, data, priority, tags, state, queue, retries, time)
  call('HSET', at, 'jid', jid, 'klass', klass, 'data', data, 'priority', priority, 'tags', tags, 'state', state,
    'worker', '', 'expires', '0', 'queue', queue, 'retries', retries, 'remaining', retries, 'time', time)
end

local function tell(jid, queue)
  if say.quiet() then return end
  if say.is_heard() then say.on(key.log, '{"jid":' .. quote(jid) .. ',"event":"put","queue":' .. quote_name(queue) .. '}') end
  if say.listening() then say.event('Put', { jid = jid, queue = queue }) end
end

-- What is the same for all that is put into a queue at one moment.
local function desk_of(queue)
  local desk = known.desk
  if desk and desk.now == now and desk.queue == queue then return desk end
  order.sure(queue)
  job.register(queue)
  desk = { queue = queue, now = now, entry = job.put_entry(queue), time = job.time_text() }
  known.desk = desk
  return desk
end

-- Makes a new job that waits, and of which nothing else is asked. Nearly all are like that.
local function create(desk, at, jid, klass, data, priority, priority_text, retries)
  local queue, is_silent = desk.queue, known.silent or say.is_silent()
  call('RPUSH', at .. '-history', desk.entry)
  if not is_silent then tell(jid, queue) end
  write(at, jid, klass, data, priority_text, NO_TAGS, 'waiting', queue, retries, desk.time)
  order.enter(queue, jid, priority, now)
  if not is_silent then say.milestone(jid, 'Put') end
end

-- The keys of jobs that are put one after the other, if none of them is there and nothing but Redis could refuse them.
local function look_ahead(run)
  if able.limits(run.queue) then return nil end
  local list, seen, keys = run.list, {}, {}
  for place = 1, run.count do
    local jid = list[2 * place - 1]
    if seen[jid] or #list[2 * place] > PAYLOAD_BYTES_MAX then return nil end
    seen[jid], keys[place] = true, key.job .. jid
  end
  if any_exists(keys) then return nil end
  return keys
end

-- Puts a run of plain jobs from a place on if they are all new; otherwise none of them. Answers the place of the last one that was done.
function put.run(run, first)
  -- If one of them was not, it is not looked again for each of the others.
  if first > 1 then return first - 1 end
  local keys = look_ahead(run)
  if not keys then return 0 end
  local desk, list, klass = desk_of(run.queue), run.list, run.klass
  for place = 1, run.count do
    run.place = place
    create(desk, keys[place], list[2 * place - 1], klass, list[2 * place], 0, '0', USUAL_RETRIES)
  end
  return run.count
end

-- Fails if a key that a put will write holds a value of another type. Puts of which nothing particular is
-- asked do not come here.
local function check_types(of, asked, open)
  local queue, terms = asked.queue, asked.terms
  local keys = keys_of(queue)
  order.sure(queue)
  zset.sure(keys.scheduled)
  zset.sure(keys.depends)
  zset.sure(key.queues)
  job.sure_of_tags(asked.tags)
  local at = key.job .. asked.jid
  call('SCARD', at .. '-dependencies')
  for _, on in ipairs(open or NOTHING) do call('SCARD', key.job .. on .. '-dependents') end
  if of then
    job.sure(of)
    zset.sure(key.completed)
    job.sure_of_tags(job.tags(of))
    for _, on in ipairs(job.dependencies(of.jid)) do call('SCARD', key.job .. on .. '-dependents') end
  end
  if terms then
    zset.sure(key.expiries)
    zset.sure(key.waiters)
    if terms.unique then call('HLEN', key.unique .. queue) end
    if terms.attach then call('LLEN', key.waiting .. asked.jid) end
  end
end

-- asked: queue, jid, klass, data, delay, priority, retries, tags, depends, caller, existing, cycles, terms
function put.put(asked)
  local jid, queue, terms = asked.jid, asked.queue, asked.terms
  local at = key.job .. jid
  -- Most jobs are new.
  local of = call('EXISTS', at) == 1 and job.load(jid) or nil
  if of and asked.existing == 'Keep' then return side.join_existing(of, terms) end
  if not of and asked.existing == 'Require' then refuse('NoSuchJob', { jid = jid }) end
  if terms then
    local joined = side.agree(of, asked)
    if joined then return joined end
  end
  if not of then able.check_limits(queue, asked.priority or 0) end
  local open
  if #asked.depends > 0 then
    open = job.open(jid, asked.depends)
    job.check_cycles(jid, open, asked.cycles)
  end

  local delay = asked.delay
  if not of and not terms and not open and delay <= 0 and not (asked.tags and asked.tags[1]) then
    local priority = asked.priority or 0
    create(desk_of(queue), at, jid, asked.klass, asked.data, priority, stored(priority), stored(asked.retries or RETRIES))
    return 'Created'
  end
  check_types(of, asked, open)
  if of then job.append(at, job.put_entry(queue)) else job.begin_history(jid, job.put_entry(queue)) end
  tell(jid, queue)
  local priority, retries, tags = asked.priority, asked.retries, asked.tags
  if of then
    leave_to_be_put(of, asked)
    if of.worker ~= '' and of.worker ~= asked.caller then
      say.lock_lost(jid, of.worker)
      if say.listening() then say.event('LockLost', { jid = jid, worker = of.worker }) end
    end
    priority = priority or tonumber(of.priority)
    retries = retries or tonumber(of.retries)
    tags = tags or of.tags
  else
    -- Nothing of what a foreign script left behind belongs to a new job.
    of = { jid = jid, at = at, waits = 0, new = true }
  end
  priority, retries, tags = priority or 0, retries or RETRIES, tags or NOTHING
  if #tags > 0 then job.index_tags(jid, tags) end

  local depends = false
  if open then
    for _, on in ipairs(open) do job.link(jid, on) end
  end
  if #asked.depends > 0 or not of.new then depends = call('SCARD', at .. '-dependencies') > 0 end
  local due = delay > 0 and finite(now + delay) or nil
  local state = depends and 'depends' or due and 'scheduled' or 'waiting'
  write(at, jid, asked.klass, asked.data, stored(priority), list_text(tags), state, queue, stored(retries), job.time_text())
  of.state, of.queue, of.klass, of.worker = state, queue, asked.klass, ''

  if terms then
    of.terms = side.kept(terms)
    of.terms.waits = of.waits > 0 and of.waits or nil
    side.write(of)
  elseif of.terms then
    side.renew(of)
  end
  if depends then
    zset.add(keys_of(queue).depends, now, jid)
    if due then call('HSET', at, 'scheduled', due) end
  elseif due then
    put.schedule(of, due)
  else
    order.enter(queue, jid, priority, now)
    if of.terms then side.enter(of) end
  end
  job.register(queue)
  say.milestone(jid, 'Put')
  if terms and terms.attach then side.attach(of, terms.attach) end
  if of.terms then side.take_key(of) end
  return of.new and 'Created' or 'Replaced'
end

-- A job that need not wait for others any more may run.
function put.release(of)
  call('HSET', of.at, 'state', 'waiting')
  of.state = 'waiting'
  order.enter(of.queue, of.jid, tonumber(of.priority), now)
  side.enter(of)
end

-- Onto the schedule of its queue.
function put.schedule(of, due)
  local queue = of.queue
  zset.add(keys_of(queue).scheduled, due, of.jid)
  local first = known.due[queue]
  if first and due < first then known.due[queue] = due end
  -- Whoever sleeps must know that something falls due.
  out.woken[queue] = (out.woken[queue] or 0) + 1
  side.enter(of)
end
