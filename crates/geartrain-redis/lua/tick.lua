-- The tick: what only time brings about: attempts over their limit, expired jobs, old results, silent
-- workers, old completed jobs, old tombstones, an event log without subscribers, and result streams of dead processes.

local RENEWED_MAX = 30 -- seconds without renewal after which the process of a result stream counts as dead
local TICKED_MAX = 10 -- seconds without a tick after which all registrations are renewed
local DETACHED_MAX = 1000 -- waiters detached per step
local OVERDUE_MAX = 30 * 86400 -- seconds that a completed job may be too old and still be dropped by a tick
local TIMEOUTS_MAX = 10 -- attempts at an endlessly retried job, lost workers apart, before a timeout fails it

-- The first valid member of a sorted set, with its score. Members that a foreign script made invalid are
-- removed on the way.
local function first_true(at, is_true)
  while true do
    local found = zset.read('ZRANGE', at, 0, 0, 'WITHSCORES')
    if not found[1] then return nil end
    local moment = tonumber(found[2])
    local of = is_true(found[1], moment)
    if of then return moment, of end
    zset.remove(at, found[1])
  end
end

local function first_deadline()
  return first_true(key.deadlines, function(jid, moment)
    local of = job.load(jid)
    return of and job.attempt(of).deadline == moment and of
  end)
end

local function first_expiry()
  return first_true(key.expiries, function(jid, moment)
    local of = job.load(jid)
    if not of or not of.terms or of.terms.expires ~= moment then return nil end
    return (of.state == 'waiting' or of.state == 'scheduled' or of.state == 'stalled') and of
  end)
end

local function first_result()
  local found = call('ZRANGE', key.ends, 0, 0, 'WITHSCORES')
  return tonumber(found[2]), found[1]
end

-- The worker with capabilities that has been silent the longest.
local function most_silent()
  if call('EXISTS', key.capabilities) == 0 then return nil end
  local first = 0
  while true do
    local found = zset.read('ZRANGE', key.workers, first, first + 99, 'WITHSCORES')
    if not found[1] then return nil end
    for at = 1, #found, 2 do
      if call('HEXISTS', key.capabilities, found[at]) == 1 then return tonumber(found[at + 1]), found[at] end
    end
    first = first + 100
  end
end

-- The oldest completed job, and when it is too old. Jobs that have been too old for thirty days
-- stay: their callers have another clock. The next completion by that clock drops them.
local function first_complete()
  local age = option.number('jobs-history')
  local earliest = finite(finite(now - age) - OVERDUE_MAX)
  local found = zset.read('ZRANGEBYSCORE', key.completed, exact(earliest), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if not found[1] then return nil end
  return finite(tonumber(found[2]) + age), found[1]
end

-- Since when registrations count. While the Redis is unreachable no process can renew its registration, so
-- after a time without ticks all are renewed: otherwise the first process to return would detach the waiters
-- of all others.
local function registered_since()
  local found = call('HMGET', key.counts, 'ticked', 'ticked-since')
  local ticked, since = tonumber(found[1]), tonumber(found[2])
  if not ticked or not since or now < ticked or now - ticked > TICKED_MAX then
    since = now
    call('HSET', key.counts, 'ticked', now, 'ticked-since', now)
  elseif now - ticked >= 1 then
    call('HSET', key.counts, 'ticked', now)
  end
  return since
end

-- The result stream whose registration is the oldest, and when its process counts as dead. Without streams it
-- costs one read.
local function first_silent_stream()
  local found = call('ZRANGE', key.fronts, 0, 0, 'WITHSCORES')
  if not found[1] then return nil end
  local renewed = tonumber(found[2])
  cache.registered_since = cache.registered_since or registered_since()
  if cache.registered_since > renewed then renewed = cache.registered_since end
  return finite(renewed + RENEWED_MAX), found[1]
end

-- Whether a job that is retried without end is given up, because its attempts always exceed their deadlines.
-- The loss of a worker does not count.
local function timed_out_too_often(of, remaining)
  local crashes = of.terms and of.terms.crashes or 0
  return tonumber(of.retries) == RETRIES_MAX and RETRIES_MAX - remaining - crashes >= TIMEOUTS_MAX
end

-- Ends an attempt over its limit.
local function overrun(of)
  local group, message = 'timed-out-' .. of.queue, 'An attempt took longer than it may'
  local wait, token = put_options.backoff(of, 0.5) or 0, job.token(of)
  if of.worker ~= '' then
    publish.lock_lost(of.jid, of.worker)
    if publish.has_event_subscribers() then
      publish.event('LockLost', { jid = of.jid, worker = of.worker })
    end
  end
  job.append(of.at, job.timed_out_entry())
  attempts.add(of, 'Deadline')
  local remaining = finish.spend_retry(of)
  if remaining < 0 or timed_out_too_often(of, remaining) then
    finish.give_up(of, group, message, 'Deadline')
  else
    finish.try_again(of, wait, job.failure_text(group, message, floor(now), of.worker), token)
  end
end

local function once()
  local moment, of = first_deadline()
  if moment and moment <= now then
    overrun(of)
    return true
  end
  moment, of = first_expiry()
  if moment and moment < now then
    finish.give_up(of, 'expired-' .. of.queue, 'Job was not started in time', 'Expired')
    return true
  end
  local result
  moment, result = first_result()
  if moment and moment <= now then
    put_options.drop_result(result)
    return true
  end
  local worker
  moment, worker = most_silent()
  if moment and finite(moment + SILENCE_MAX) < now then
    capabilities.forget(worker)
    if publish.has_event_subscribers() then publish.event('WorkerGone', { worker = worker }) end
    return true
  end
  local complete
  moment, complete = first_complete()
  if moment and moment <= now then
    finish.drop(complete)
    return true
  end
  local tombstone
  moment, tombstone = canceled.first(OVERDUE_MAX)
  if moment and moment <= now then
    canceled.drop(tombstone)
    return true
  end
  moment = events.ends()
  if moment and moment < now then
    events.stop()
    return true
  end
  local stream
  moment, stream = first_silent_stream()
  if moment and moment < now then
    if put_options.detach_stream(stream, DETACHED_MAX) then call('ZREM', key.fronts, stream) end
    return true
  end
  return false
end

-- Does up to `count` steps. Returns how many, and when there is more to do.
function tick.tick(count)
  figures.sample()
  policies.sweep()
  local done = policies.apply(count)
  while done < count and once() do done = done + 1 end
  if cache.behind then policies.apply() end
  local earliest = huge
  local function due(moment)
    if moment and moment < earliest then earliest = moment end
  end
  due((first_deadline()))
  local expiry, silent, ends = first_expiry(), most_silent(), events.ends()
  due(expiry and after(expiry))
  due((first_result()))
  due(silent and after(finite(silent + SILENCE_MAX)))
  due((first_complete()))
  due((canceled.first(OVERDUE_MAX)))
  due(ends and after(ends))
  local stream = first_silent_stream()
  due(stream and after(stream))
  if policies.are_due() then due(now) end
  return done, earliest < huge and earliest or nil
end
