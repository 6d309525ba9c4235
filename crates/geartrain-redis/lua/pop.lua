-- Popping: which job a worker gets next, and everything that falls due on a pop.

local QUEUES_MAX = 1024
local RELOCK_MAX = 1000 -- jobs that one command locks again
local LATE_MAX = 1000 -- expired jobs that one pop fails at most
local AHEAD_MAX = 256 -- waiting jobs that are prefetched

local function is_paused(queue)
  local paused = cache.paused[queue]
  if paused == nil then
    paused = call('SISMEMBER', key.paused, queue) == 1
    cache.paused[queue] = paused
  end
  return paused
end
pop.is_paused = is_paused

-- The first score of a sorted set; infinite if it is empty. Cached until an earlier one comes in, so that a
-- batch of pops reads it once.
function pop.first_of(firsts, queue, at)
  local first = firsts[queue]
  if not first then
    first = tonumber(zset.read('ZRANGE', at, 0, 0, 'WITHSCORES')[2]) or huge
    firsts[queue] = first
  end
  return first
end

-- Jobs whose lock has expired, the oldest first; with a set of klasses, only those of these.
local function expired(queue, max, set)
  local at = keys_of(queue).locks
  if max <= 0 or pop.first_of(cache.locks, queue, at) > now then return {} end
  cache.locks[queue] = nil
  if set then return klasses.due(at, key.job, set, max) end
  return zset.read('ZRANGEBYSCORE', at, '-inf', exact(now), 'LIMIT', 0, max)
end
pop.expired = expired

-- Makes up to `max` due jobs of a queue waiting, the oldest first; without `max` all of them. With a set of
-- klasses, only those of these.
function pop.promote(queue, max, set)
  local at = keys_of(queue).scheduled
  if max and max <= 0 or pop.first_of(cache.due, queue, at) > now then return end
  cache.due[queue] = nil
  order.check_type(queue)
  local due = set and klasses.due(at, key.job, set, max)
    or zset.read('ZRANGEBYSCORE', at, '-inf', exact(now), 'LIMIT', 0, max or -1)
  for _, jid in ipairs(due) do
    local job_at = key.job .. jid
    local priority = call('HGET', job_at, 'priority')
    zset.remove(at, jid)
    if priority then
      call('HSET', job_at, 'state', 'waiting')
      order.enter(queue, jid, tonumber(priority) or 0, now)
    end
  end
end

-- The first job of a queue, which stays there, or nil. Prefetches some of those behind it.
local function first_waiting(queue)
  local ahead = cache.ahead[queue]
  if ahead and ahead.list then ahead = nil end -- of klasses
  if not ahead or ahead.at > #ahead then
    local count = ahead and ahead.count * 4 or cache.wanted or 1
    if count > AHEAD_MAX then count = AHEAD_MAX end
    ahead = zset.read('ZREVRANGE', keys_of(queue).work, 0, count - 1)
    ahead.at, ahead.count = 1, count
    cache.ahead[queue] = ahead
  end
  return ahead[ahead.at]
end

-- Removes the first job from the waiting ones.
local function take_first(queue)
  zset.remove_highest(keys_of(queue).work)
  local ahead = cache.ahead[queue]
  if ahead then ahead.at = ahead.at + 1 end
end

-- Fails an expired job of a queue. Returns false if too many have failed.
local function expire(queue, of, late)
  if late.left == 0 then return false end
  late.left = late.left - 1
  finish.give_up(of, 'expired-' .. queue, 'Job was not started in time', 'Expired')
  return true
end

-- The first waiting job of some klasses, by the index of klasses.
local function next_indexed(queue, late, list, set)
  while true do
    local jid, klass = klasses.first(queue, list)
    if not jid then
      if late.left == LATE_MAX then return nil end
      pop.promote(queue, 1, set)
      jid, klass = klasses.first(queue, list)
      if not jid then return nil end
    end
    local at = key.job .. jid
    local found = job.read_waiting(at)
    if found[10] ~= klass then
      klasses.correct(queue, jid, klass, found[10])
    else
      local of = found[7] and job.waiting(jid, at, found)
      if not of or not put_options.expired_since(of) then return jid, at, found end
      if not expire(queue, of, late) then return nil end
      klasses.take(queue, jid, klass)
    end
  end
end

-- The first waiting job that has not expired: its jid, its key and its fields. Expired jobs fail. For a pop that
-- is restricted to klasses the index is not needed while the first job of the queue is of one of them.
local function next_unexpired(queue, late, list, set)
  while true do
    if list and cache.mixed[queue] then return next_indexed(queue, late, list, set) end
    local ahead = cache.ahead[queue]
    local jid = ahead and ahead[ahead.at] or first_waiting(queue)
    if not jid then
      if late.left == LATE_MAX then return nil end
      -- Due jobs take the places of expired ones.
      pop.promote(queue, 1, set)
      jid = first_waiting(queue)
      if not jid then return nil end
    end
    local at = key.job .. jid
    local found = job.read_waiting(at)
    if list and not set[found[10]] then
      cache.mixed[queue] = true
    elseif not found[1] then
      take_first(queue) -- left behind by a foreign script
    elseif not found[7] then
      return jid, at, found
    else
      local of = job.waiting(jid, at, found)
      if not put_options.expired_since(of) then return jid, at, found end
      if not expire(queue, of, late) then return nil end
      -- A foreign script may have left it in the list of another queue.
      zset.remove(keys_of(queue).work, jid)
      cache.ahead[queue] = nil
      if list then klasses.took(queue, jid, found[10]) end
    end
  end
end

-- How many more locks a queue may have, or nil without a limit.
function pop.free_slots(queue)
  local max = option.concurrency(queue)
  if not max then return nil end
  local places = floor(max - zset.read('ZCOUNT', key.queue .. queue .. '-locks', exact(now), '+inf'))
  return places > 0 and places or 0
end

-- How many jobs of a queue may start now by its limits, up to `wanted`.
local function open_slots(queue, wanted)
  if is_paused(queue) then return 0 end
  local places = pop.free_slots(queue)
  if places and places < wanted then wanted = places end
  return capabilities.allowed_starts(queue, wanted)
end

-- Warns the holder of an expired lock.
local function warn(of)
  local jid = of.jid
  job.check_type(of)
  publish.milestone(jid, 'Stalled')
  job.append(of.at, job.timed_out_entry())
  if of.worker ~= '' then
    publish.lock_lost(jid, of.worker)
    if publish.has_event_subscribers() then publish.event('LockLost', { jid = jid, worker = of.worker }) end
    zset.remove(jobs_of(of.worker), jid)
    -- Losing a worker affects the jobs that it was warned about as well.
    call('SADD', key.warned .. of.worker, jid)
  end
  call('HSET', of.at, 'grace', '1')
  of.grace = true
  finish.lock(of.queue, jid, finite(now + option.number('grace-period')))
  stats.count('retries', of.queue, now, 1)
end

-- Ends the attempt of a holder that was warned, or that gets no warning.
local function take_over(of)
  job.check_type(of)
  if option.number('grace-period') <= 0 then warn(of) end
  job.forget_ended(of)
  attempts.add(of, 'LockExpired')
  finish.spend_retry(of)
end

-- Handles an expired lock: warns the holder the first time, fails the job without retries left, and otherwise
-- lets another worker take it over.
local function handle_expired(of)
  if not of.grace and option.number('grace-period') > 0 then
    warn(of)
    return false
  end
  if tonumber(of.remaining) <= 0 then
    take_over(of)
    local group, message = finish.exhausted(of)
    finish.give_up(of, group, message, 'Expiry')
    return false
  end
  return true
end

-- Jobs with expired locks that can be popped.
local function expired_jobs(queue, max, set)
  local all = {}
  for _, jid in ipairs(expired(queue, max, set)) do
    local at = key.job .. jid
    local of = job.waiting(jid, at, job.read_waiting(at))
    if of and of.state == 'running' and of.queue == queue then
      all[#all + 1] = of
    else
      zset.remove(key.queue .. queue .. '-locks', jid) -- left behind by a foreign script
    end
  end
  return all
end

-- What is the same for all jobs that a worker pops from a queue at one time.
local function new_context(queue, worker, deadline)
  -- The locks were read when looking for expired ones.
  zset.check_type(jobs_of(worker))
  return {
    queue = queue, worker = worker, now = now, deadline = deadline, deadline_text = exact(deadline),
    time = job.time_text(), lock = ' ' .. job.time_text() .. ' ' .. worker, entry = job.popped_entry(worker),
      jobs = jobs_of(worker), locks = keys_of(queue).locks,
  }
end

local function counter_of(queue, worker)
  local last = cache.pop_context
  if not last or last.queue ~= queue or last.worker ~= worker or last.now ~= now then
    last = new_context(queue, worker, finite(now + option.heartbeat(queue)))
    cache.pop_context = last
  end
  return last
end

-- Gives a job to a worker: what is written for every popped job. `time` is when its wait began, if it waited.
-- Returns the token and the lock.
local function assign(context, jid, at, time)
  local queue, deadline_text, spans = context.queue, context.deadline_text, context.spans
  if time and spans and spans.owner == context and spans.time == time then
    spans.times = spans.times + 1
  elseif time then
    context.spans = stats.measure('wait', queue, time, context)
  end
  local token = job.new_token()
  local lock = token .. context.lock
  job.append(at, context.entry)
  call('HSET', at, 'worker', context.worker, 'expires', deadline_text, 'state', 'running', 'time',
    context.time, 'gt-lock', lock)
  zset.add_to_both(context.locks, context.jobs, deadline_text, jid)
  local first = cache.locks[queue]
  if first and context.deadline < first then cache.locks[queue] = context.deadline end
  return token, lock
end

local function publish_popped(jid, queue, worker)
  if publish.has_event_subscribers() then
    publish.event('Popped', { jid = jid, queue = queue, worker = worker })
  end
  publish.milestone(jid, 'Popped')
end

-- Pops a job without options or previous holder, from a queue without limits, for a worker without
-- capabilities.
local function pop_plain(jid, at, found, asked, context)
  local token = assign(context, jid, at, found[4] or '0')
  local queue, worker = context.queue, context.worker
  if not (cache.unpublished or publish.is_not_needed()) then publish_popped(jid, queue, worker) end
  return asked.show_plain(jid, queue, found[10] or '', found[11] or '', found[9] or '0', found[5] or '0',
    found[8] or '0', worker, token, context.deadline)
end

-- Begins an attempt at a job that was assigned: its deadline, and what is published.
local function begin_attempt(of, worker, token, lock, context)
  of.worker, of.state, of.time, of.lock, of.token, of.deadline = worker, 'running', context.time, lock, token,
    context.deadline
  local attempt_max = capabilities.attempt_max(of, worker)
  if attempt_max then
    local ends = finite(now + attempt_max)
    job.set_attempt(of, token, { deadline = ends })
    zset.add(key.deadlines, ends, of.jid)
  end
  publish_popped(of.jid, of.queue, worker)
end

-- Pops any job.
local function pop_one(of, asked, context)
  local jid, queue, worker = of.jid, of.queue, asked.worker
  -- The queue's own keys were read when the job was found, and the history is the first write.
  if of.worker ~= '' and of.worker ~= worker then zset.check_type(jobs_of(of.worker)) end
  if of.terms then zset.check_type(key.deadlines) end
  if of.terms and of.terms.expires then zset.check_type(key.expiries) end
  if of.grace then call('SADD', key.warned .. worker, jid) end
  if of.worker ~= '' and of.worker ~= worker then zset.remove(jobs_of(of.worker), jid) end
  if of.terms then put_options.end_attempt(of) end
  -- A foreign script may have left it in the list of another queue.
  if queue ~= context.queue then context = new_context(queue, worker, context.deadline) end
  local token, lock = assign(context, jid, of.at, of.time)
  if capabilities.limits(queue) then capabilities.count_start(queue) end
  if of.terms then put_options.unindex_expiry(of) end
  begin_attempt(of, worker, token, lock, context)
  -- Encoded now: before the pop ends its lock may have expired.
  return asked.show and asked.show(of) or of
end

-- Pops up to `wanted` jobs of one queue.
local function pop_from(queue, wanted, asked, popped)
  wanted = open_slots(queue, wanted)
  if wanted == 0 then return end
  local worker = asked.worker
  local list, set = klasses.of(queue, asked)
  local context = counter_of(queue, worker)
  local taken = {}
  for _, of in ipairs(expired_jobs(queue, wanted, set)) do
    if handle_expired(of) then
      take_over(of)
      taken[#taken + 1] = of
    end
  end
  local waiting = wanted - #taken
  recur.spawn(queue, waiting, set)
  pop.promote(queue, waiting, set)
  for _, of in ipairs(taken) do popped[#popped + 1] = pop_one(of, asked, context) end
  local late = { left = LATE_MAX }
  cache.wanted = waiting
  local plain = asked.show_plain and not capabilities.limits(queue) and not capabilities.has_announced(queue,
    worker)
  local count = #popped
  for _ = 1, waiting do
    local jid, at, found = next_unexpired(queue, late, list, set)
    if not jid then break end
    count = count + 1
    if plain and found[2] == queue and (found[3] == '' or found[3] == worker) and not found[6]
      and not found[7] then
      popped[count] = pop_plain(jid, at, found, asked, context)
    else
      popped[count] = pop_one(job.waiting(jid, at, found), asked, context)
    end
    -- Last, so that a job that could not be popped stays in place.
    if list and cache.mixed[queue] then
      klasses.take(queue, jid, found[10])
    else
      take_first(queue)
      if list then klasses.took(queue, jid, found[10]) end
    end
  end
end

-- Pops the job with the highest priority among the queues, and returns its queue.
local function pop_by_priority(queues, turn, asked, popped)
  local best, best_at, best_priority, over
  local late = { left = LATE_MAX }
  cache.wanted = 1
  for step = 0, #queues - 1 do
    local at = (turn + step) % #queues
    local queue = queues[at + 1]
    if open_slots(queue, 1) > 0 then
      local list, set = klasses.of(queue, asked)
      local candidate, taken = expired_jobs(queue, 1, set)[1], true
      if candidate and not handle_expired(candidate) then candidate = nil end
      if not candidate then
        taken = false
        recur.spawn(queue, 1, set)
        pop.promote(queue, 1, set)
        local jid, at, found = next_unexpired(queue, late, list, set)
        candidate = jid and job.waiting(jid, at, found)
      end
      local priority = candidate and tonumber(candidate.priority)
      if candidate and (not best or priority > best_priority) then
        best, best_at, best_priority, over = candidate, at, priority, taken
      end
    end
  end
  if not best then return nil end
  if over then
    take_over(best)
  else
    -- Commands on other queues may have put others before it.
    zset.remove(keys_of(best.queue).work, best.jid)
    cache.ahead[best.queue] = nil
  end
  popped[#popped + 1] = pop_one(best, asked, counter_of(best.queue, asked.worker))
  return best_at
end

-- asked: queues, worker, count, order, turn, klasses; show, which encodes a popped job, and show_plain, which encodes
-- the fields of a plain one. Returns the encoded jobs, and the turn of the next pop.
function pop.pop(asked)
  local queues, worker, count = asked.queues, asked.worker, asked.count
  pop.check_queues(queues)
  if asked.klasses then klasses.check(asked.klasses) end
  local turn = asked.order == 'Strict' and 0 or asked.turn % #queues
  local popped = {}
  local all_paused = true
  for _, queue in ipairs(queues) do
    klasses.record_pop(queue, asked)
    all_paused = all_paused and is_paused(queue)
  end
  if all_paused then return popped, turn end
  finish.seen(worker)
  if asked.order == 'Strict' then
    for _, queue in ipairs(queues) do pop_from(queue, count - #popped, asked, popped) end
  elseif asked.order == 'RoundRobin' then
    local at, empty = turn, 0
    while #popped < count and empty < #queues do
      local before = #popped
      pop_from(queues[at + 1], 1, asked, popped)
      at = (at + 1) % #queues
      if #popped > before then
        turn, empty = at, 0
      else
        empty = empty + 1
      end
    end
  else
    while #popped < count do
      local at = pop_by_priority(queues, turn, asked, popped)
      if not at then break end
      turn = (at + 1) % #queues
    end
  end
  return popped, turn
end

-- Locks a job again that a restarted worker has. It did not wait, and its start was counted already.
local function lock_again(of, worker)
  attempts.add(of, 'Resumed')
  job.forget_ended(of)
  if of.grace then
    job.clear_warning(of)
    call('HDEL', of.at, 'grace')
    of.grace = false
  end
  put_options.end_attempt(of)
  local context = counter_of(of.queue, worker)
  local token, lock = assign(context, of.jid, of.at)
  of.data = call('HGET', of.at, 'data')
  begin_attempt(of, worker, token, lock, context)
end

-- Locks the running jobs of a worker again. asked: worker, queues (none for all), count, before (a token),
-- show, which encodes a job. Returns the encoded jobs, in the order in which they were popped.
function pop.relock(asked)
  local worker, count, before = asked.worker, asked.count, tonumber(asked.before or nil)
  if count < 1 or count > RELOCK_MAX then bad('count', 'must be 1 to ' .. RELOCK_MAX .. ', not ' .. count) end
  at_most('queues', #asked.queues, QUEUES_MAX)
  local queues = asked.queues[1] and set_of(asked.queues)
  local locked = {}
  for _, of in ipairs(capabilities.held_by(worker)) do
    if #locked == count then break end
    if (not queues or queues[of.queue]) and (not before or (tonumber(job.token(of)) or 0) < before) then
      job.check_type(of)
      if capabilities.attempt_max(of, worker) then zset.check_type(key.deadlines) end
      locked[#locked + 1] = of
    end
  end
  -- Read before the first write.
  cache.token = cache.token or tonumber(call('GET', key.token)) or 0
  finish.seen(worker)
  for place, of in ipairs(locked) do
    lock_again(of, worker)
    locked[place] = asked.show(of)
  end
  return locked
end

-- Whether a pop would handle an expired lock.
function pop.has_expired(asked)
  for _, queue in ipairs(asked.queues) do
    local _, set = klasses.of(queue, asked)
    if open_slots(queue, 1) > 0 and #expired(queue, 1, set) > 0 then return true end
  end
  return false
end

-- Refuses an empty list of queues, or too many.
function pop.check_queues(queues)
  at_least_one('queues', queues)
  at_most('queues', #queues, QUEUES_MAX)
end

-- Whether a pop would find anything to do in a queue, even if only an expired lock. Changes nothing.
function pop.is_ready(queue)
  local keys = keys_of(queue)
  local has_any = zset.read('ZCARD', keys.work) > 0 or pop.first_of(cache.locks, queue, keys.locks) <= now
    or pop.first_of(cache.due, queue, keys.scheduled) <= now
    or pop.first_of(cache.recurring, queue, keys.recur) <= now
  return has_any and open_slots(queue, 1) > 0
end

-- The jobs that a pop would return.
function pop.peek(queue, count)
  local jids = expired(queue, count)
  local wanted = count - #jids
  recur.spawn(queue, wanted)
  pop.promote(queue, wanted)
  if wanted > 0 then
    for _, jid in ipairs(zset.read('ZREVRANGE', keys_of(queue).work, 0, wanted - 1)) do
      jids[#jids + 1] = jid
    end
  end
  return jids
end
