-- Which job a worker gets next, and all that comes due when somebody asks.

local QUEUES_MAX = 1024
local LATE_MAX = 1000 -- jobs not started in time that one pop fails at the most
local AHEAD_MAX = 256 -- waiting jobs that are read at once

local function is_paused(queue)
  local paused = known.paused[queue]
  if paused == nil then
    paused = call('SISMEMBER', key.paused, queue) == 1
    known.paused[queue] = paused
  end
  return paused
end
pop.is_paused = is_paused

-- The first score of a sorted set; infinite if it is empty. Until something earlier comes in it is not asked for again, so that a batch of pops asks once.
function pop.first_of(cache, queue, at)
  local first = cache[queue]
  if not first then
    first = tonumber(zset.ask('ZRANGE', at, 0, 0, 'WITHSCORES')[2]) or huge
    cache[queue] = first
  end
  return first
end

-- Jobs whose lock has expired, the longest expired first.
local function expired(queue, max)
  local at = keys_of(queue).locks
  if max <= 0 or pop.first_of(known.locks, queue, at) > now then return {} end
  known.locks[queue] = nil
  return zset.ask('ZRANGEBYSCORE', at, '-inf', exact(now), 'LIMIT', 0, max)
end
pop.expired = expired

-- Makes up to `max` due jobs of a queue waiting, the longest due first. All of them, if not given.
function pop.promote(queue, max)
  local at = keys_of(queue).scheduled
  if max and max <= 0 or pop.first_of(known.due, queue, at) > now then return end
  known.due[queue] = nil
  order.sure(queue)
  for _, jid in ipairs(zset.ask('ZRANGEBYSCORE', at, '-inf', exact(now), 'LIMIT', 0, max or -1)) do
    local job_at = key.job .. jid
    local priority = call('HGET', job_at, 'priority')
    zset.remove(at, jid)
    if priority then
      call('HSET', job_at, 'state', 'waiting')
      order.enter(queue, jid, tonumber(priority) or 0, now)
    end
  end
end

-- The job that is first in a queue, which stays there; none if it is empty. Some of those behind it are read with it.
local function first_waiting(queue)
  local ahead = known.ahead[queue]
  if not ahead or ahead.at > #ahead then
    local count = ahead and ahead.count * 4 or known.wanted or 1
    if count > AHEAD_MAX then count = AHEAD_MAX end
    ahead = zset.ask('ZREVRANGE', keys_of(queue).work, 0, count - 1)
    ahead.at, ahead.count = 1, count
    known.ahead[queue] = ahead
  end
  return ahead[ahead.at]
end

-- Takes the first job out of work.
local function take_first(queue)
  zset.remove_highest(keys_of(queue).work)
  local ahead = known.ahead[queue]
  if ahead then ahead.at = ahead.at + 1 end
end

-- The first job that waits in a queue and may still start: its jid, its key and what was read of it. Those that may not start fail.
local function next_in_time(queue, late)
  while true do
    local ahead = known.ahead[queue]
    local jid = ahead and ahead[ahead.at] or first_waiting(queue)
    if not jid then
      if late.left == LATE_MAX then return nil end
      -- In the stead of those that were late others come in that are due.
      pop.promote(queue, 1)
      jid = first_waiting(queue)
      if not jid then return nil end
    end
    local at = key.job .. jid
    local found = job.read_waiting(at)
    if not found[1] then
      take_first(queue) -- a foreign script left it behind
    elseif not found[7] then
      return jid, at, found
    else
      local of = job.waiting(jid, at, found)
      if not side.late_since(of) then return jid, at, found end
      if late.left == 0 then return nil end
      late.left = late.left - 1
      finish.give_up(of, 'expired-' .. queue, 'Job was not started in time', 'Expired')
      -- A foreign script may have left it in the list of another queue than its own.
      zset.remove(keys_of(queue).work, jid)
      known.ahead[queue] = nil
    end
  end
end

-- How many more locks a queue may have; none for any number.
function pop.free_places(queue)
  local max = option.concurrency(queue)
  if not max then return nil end
  local places = floor(max - zset.ask('ZCOUNT', key.queue .. queue .. '-locks', exact(now), '+inf'))
  return places > 0 and places or 0
end

-- How many jobs of a queue may be handed out now, as far as the queue goes, up to so many.
local function open_places(queue, wanted)
  if is_paused(queue) then return 0 end
  local places = pop.free_places(queue)
  if places and places < wanted then wanted = places end
  return able.starts(queue, wanted)
end

-- Warns the holder of a lock that has expired.
local function warn(of)
  local jid = of.jid
  job.sure(of)
  say.milestone(jid, 'Stalled')
  job.append(of.at, job.timed_out_entry())
  if of.worker ~= '' then
    say.lock_lost(jid, of.worker)
    if say.listening() then say.event('LockLost', { jid = jid, worker = of.worker }) end
    zset.remove(jobs_of(of.worker), jid)
    -- The end of a worker takes those along that it was warned about.
    call('SADD', key.warned .. of.worker, jid)
  end
  call('HSET', of.at, 'grace', '1')
  of.grace = true
  finish.lock(of.queue, jid, finite(now + option.number('grace-period')))
  stats.count('retries', of.queue, now, 1)
end

-- Ends the attempt of a holder that was warned, or that gets no warning.
local function take_over(of)
  job.sure(of)
  if option.number('grace-period') <= 0 then warn(of) end
  job.forget_ended(of)
  finish.spend(of)
end

-- Deals with a lock that has expired: warns its holder the first time, fails the job if no retry is left, and else says that another may take it over.
local function examine(of)
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

-- Jobs with expired locks that are to be handed out.
local function expired_jobs(queue, max)
  local all = {}
  for _, jid in ipairs(expired(queue, max)) do
    local at = key.job .. jid
    local of = job.waiting(jid, at, job.read_waiting(at))
    if of and of.state == 'running' and of.queue == queue then
      all[#all + 1] = of
    else
      zset.remove(key.queue .. queue .. '-locks', jid) -- a foreign script left it behind
    end
  end
  return all
end

-- Where jobs of a queue are handed out to a worker: what is the same for all that it gets at one moment.
local function new_counter(queue, worker, deadline)
  -- The locks were read when it was looked for expired ones.
  zset.sure(jobs_of(worker))
  return {
    queue = queue, worker = worker, now = now, deadline = deadline, deadline_text = exact(deadline), time = job.time_text(),
    lock = ' ' .. job.time_text() .. ' ' .. worker, entry = job.popped_entry(worker), jobs = jobs_of(worker), locks = keys_of(queue).locks,
  }
end

local function counter_of(queue, worker)
  local last = known.counter
  if not last or last.queue ~= queue or last.worker ~= worker or last.now ~= now then
    last = new_counter(queue, worker, finite(now + option.heartbeat(queue)))
    known.counter = last
  end
  return last
end

-- Gives a job to a worker: all that is written of every job that is handed out. Answers the token, and the lock.
local function give(counter, jid, at, time)
  local queue, deadline_text, spans = counter.queue, counter.deadline_text, counter.spans
  if spans and spans.owner == counter and spans.time == time then
    spans.times = spans.times + 1
  else
    counter.spans = stats.measure('wait', queue, time, counter)
  end
  local token = job.new_token()
  local lock = token .. counter.lock
  job.append(at, counter.entry)
  call('HSET', at, 'worker', counter.worker, 'expires', deadline_text, 'state', 'running', 'time', counter.time, 'gt-lock', lock)
  zset.add_to_both(counter.locks, counter.jobs, deadline_text, jid)
  local first = known.locks[queue]
  if first and counter.deadline < first then known.locks[queue] = counter.deadline end
  return token, lock
end

local function tell(jid, queue, worker)
  if say.listening() then say.event('Popped', { jid = jid, queue = queue, worker = worker }) end
  say.milestone(jid, 'Popped')
end

-- Hands out a job of which nothing is true beyond Qless and that nobody else has or had, in a queue without limits, to a worker of whom nothing is known.
local function hand_out_plain(jid, at, found, asked, counter)
  local token = give(counter, jid, at, found[4] or '0')
  local queue, worker = counter.queue, counter.worker
  if not (known.silent or say.is_silent()) then tell(jid, queue, worker) end
  return asked.show_plain(jid, queue, found[10] or '', found[11] or '', found[9] or '0', found[5] or '0', found[8] or '0', worker, token, counter.deadline)
end

-- Hands out any job.
local function hand_out(of, asked, counter)
  local jid, queue, worker = of.jid, of.queue, asked.worker
  -- The queue's own keys were read when the job was found, and the history is written first of all.
  if of.worker ~= '' and of.worker ~= worker then zset.sure(jobs_of(of.worker)) end
  if of.terms then zset.sure(key.deadlines) end
  if of.terms and of.terms.expires then zset.sure(key.expiries) end
  if of.grace then call('SADD', key.warned .. worker, jid) end
  if of.worker ~= '' and of.worker ~= worker then zset.remove(jobs_of(of.worker), jid) end
  if of.terms then side.end_attempt(of) end
  -- A foreign script may have left it in the list of another queue.
  if queue ~= counter.queue then counter = new_counter(queue, worker, counter.deadline) end
  local token, lock = give(counter, jid, of.at, of.time)
  of.worker, of.state, of.time, of.lock, of.token, of.deadline = worker, 'running', counter.time, lock, token, counter.deadline
  if able.limits(queue) then able.start(queue) end
  if of.terms then side.leave(of) end
  local attempt_max = able.attempt_max(of, worker)
  if attempt_max then
    local ends = finite(now + attempt_max)
    job.set_attempt(of, token, { deadline = ends })
    zset.add(key.deadlines, ends, jid)
  end
  tell(jid, queue, worker)
  -- It is shown as it is now: before the pop is over its lock may have expired.
  return asked.show and asked.show(of) or of
end

-- Hands out up to `wanted` jobs of one queue.
local function pop_from(queue, wanted, asked, popped)
  wanted = open_places(queue, wanted)
  if wanted == 0 then return end
  local worker = asked.worker
  local counter = counter_of(queue, worker)
  local taken = {}
  for _, of in ipairs(expired_jobs(queue, wanted)) do
    if examine(of) then
      take_over(of)
      taken[#taken + 1] = of
    end
  end
  local waiting = wanted - #taken
  recur.spawn(queue, waiting)
  pop.promote(queue, waiting)
  for _, of in ipairs(taken) do popped[#popped + 1] = hand_out(of, asked, counter) end
  local late = { left = LATE_MAX }
  known.wanted = waiting
  local plain = asked.show_plain and not able.limits(queue) and not able.knows(queue, worker)
  local count = #popped
  for _ = 1, waiting do
    local jid, at, found = next_in_time(queue, late)
    if not jid then break end
    count = count + 1
    if plain and found[2] == queue and (found[3] == '' or found[3] == worker) and not found[6] and not found[7] then
      popped[count] = hand_out_plain(jid, at, found, asked, counter)
    else
      popped[count] = hand_out(job.waiting(jid, at, found), asked, counter)
    end
    -- Last, so that a job which could not be handed out stays where it is.
    take_first(queue)
  end
end

-- Hands out the job that matters most among the queues, and says which of them it came from.
local function pop_by_priority(queues, turn, asked, popped)
  local best, best_at, best_priority, over
  local late = { left = LATE_MAX }
  known.wanted = 1
  for step = 0, #queues - 1 do
    local at = (turn + step) % #queues
    local queue = queues[at + 1]
    if open_places(queue, 1) > 0 then
      local candidate, taken = expired_jobs(queue, 1)[1], true
      if candidate and not examine(candidate) then candidate = nil end
      if not candidate then
        taken = false
        recur.spawn(queue, 1)
        pop.promote(queue, 1)
        local jid, at, found = next_in_time(queue, late)
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
    -- What was done since in other queues may have brought others before it.
    zset.remove(keys_of(best.queue).work, best.jid)
    known.ahead[best.queue] = nil
  end
  popped[#popped + 1] = hand_out(best, asked, counter_of(best.queue, asked.worker))
  return best_at
end

-- asked: queues, worker, count, order, turn, and show, which makes of a job that is handed out what is answered,
-- and show_plain, which does so of the fields of a plain one. Answers these, and where the next pop begins.
function pop.pop(asked)
  local queues, worker, count = asked.queues, asked.worker, asked.count
  pop.check_queues(queues)
  local turn = asked.order == 'Strict' and 0 or asked.turn % #queues
  local popped = {}
  local all_paused = true
  for _, queue in ipairs(queues) do
    able.note_asked(queue)
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

-- Whether a pop would look at a lock that has expired.
function pop.has_expired(queues)
  for _, queue in ipairs(queues) do
    if open_places(queue, 1) > 0 and #expired(queue, 1) > 0 then return true end
  end
  return false
end

-- Refuses to look into no queue, or into too many.
function pop.check_queues(queues)
  at_least_one('queues', queues)
  at_most('queues', #queues, QUEUES_MAX)
end

-- Whether a pop would find anything to do in a queue, be it only a lock to warn about. Nothing changes.
function pop.is_ready(queue)
  local keys = keys_of(queue)
  local has_any = zset.ask('ZCARD', keys.work) > 0 or pop.first_of(known.locks, queue, keys.locks) <= now
    or pop.first_of(known.due, queue, keys.scheduled) <= now or pop.first_of(known.recurring, queue, keys.recur) <= now
  return has_any and open_places(queue, 1) > 0
end

-- Which jobs a pop would hand out.
function pop.peek(queue, count)
  local jids = expired(queue, count)
  local wanted = count - #jids
  recur.spawn(queue, wanted)
  pop.promote(queue, wanted)
  if wanted > 0 then
    for _, jid in ipairs(zset.ask('ZREVRANGE', keys_of(queue).work, 0, wanted - 1)) do jids[#jids + 1] = jid end
  end
  return jids
end
