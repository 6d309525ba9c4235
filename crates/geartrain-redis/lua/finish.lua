-- How an attempt ends: heartbeat puts it off; complete, fail, retry and timeout bring it about; unfail and cancel deal with what is left.

local sub, byte = string.sub, string.byte
local POINT = byte('.')
local DROPPED_MAX = 1000 -- old jobs that one completion removes at the most
local OLDEST_MAX = 128 -- of those that go next, so many are read at once

-- The job that somebody says they hold.
local function claimed(jid, holder)
  local of = job.existing(jid)
  if not job.is_held(of, holder) then job.refuse_holder(of, holder) end
  return of
end
finish.claimed = claimed

local function seen(worker)
  if known.seen[worker] ~= now then
    zset.sure(key.workers)
    known.seen[worker] = now
    zset.add(key.workers, now, worker)
  end
end
finish.seen = seen

local function lock(queue, jid, deadline)
  zset.add(keys_of(queue).locks, deadline, jid)
  local first = known.locks[queue]
  if first and deadline < first then known.locks[queue] = deadline end
end
finish.lock = lock

function finish.heartbeat(asked)
  local of = job.load_held(asked.jid)
  if not job.is_held(of, asked.holder) then job.refuse_holder(of, asked.holder) end
  local deadline = finite(now + option.heartbeat(of.queue))
  zset.sure(jobs_of(of.worker))
  zset.sure(keys_of(of.queue).locks)
  seen(of.worker)
  if asked.data then
    call('HSET', of.at, 'expires', deadline, 'data', asked.data)
  else
    call('HSET', of.at, 'expires', deadline)
  end
  zset.add(jobs_of(of.worker), deadline, of.jid)
  lock(of.queue, of.jid, deadline)
  return deadline
end

-- Fails if the jobs that wait for this one could not be let go. Answers them.
local function check_dependents(jid)
  local dependents = call('SMEMBERS', key.job .. jid .. '-dependents')
  for _, dependent in ipairs(dependents) do
    call('SCARD', key.job .. dependent .. '-dependencies')
    local queue = call('HGET', key.job .. dependent, 'queue')
    if queue and queue ~= '' then
      order.sure(queue)
      zset.sure(keys_of(queue).depends)
      zset.sure(keys_of(queue).scheduled)
    end
  end
  return dependents
end

-- Lets the jobs go that waited for this one alone, in the order of their jids.
local function release_dependents(jid, dependents)
  if #dependents == 0 then return end
  local of_it = key.job .. jid .. '-dependents'
  for _, dependent in ipairs(sorted(dependents)) do
    local at = key.job .. dependent .. '-dependencies'
    if call('SREM', at, jid) == 1 and call('EXISTS', at) == 0 then
      local of = job.load(dependent)
      if of and of.queue ~= '' and of.state == 'depends' then
        zset.remove(key.queue .. of.queue .. '-depends', dependent)
        if of.scheduled then
          call('HSET', of.at, 'state', 'scheduled')
          call('HDEL', of.at, 'scheduled')
          of.state = 'scheduled'
          put.schedule(of, tonumber(of.scheduled))
        else
          put.release(of)
        end
      end
    end
  end
  call('DEL', of_it)
end

-- Forgets a complete job, as Qless does: what others depend on and who tracks it is left alone.
local function drop(jid)
  local at = key.job .. jid
  local found = call('HMGET', at, 'tags', 'gt-more')
  zset.remove_earlier(key.completed, jid)
  -- Most have neither tags nor anything beyond Qless.
  if found[2] or (found[1] and found[1] ~= '{}') then
    local of = job.load(jid)
    if not of then return end
    job.unindex_tags(of)
    side.forget(of)
  end
  call('DEL', at, at .. '-history')
end

-- The moment up to which complete jobs are too old, and how many are not too many.
local function bounds()
  local keep = known.keep
  if not keep then
    keep = { age = option.number('jobs-history'), count = option.count('jobs-history-count') }
    known.keep = keep
  end
  return finite(now - keep.age), keep.count
end

-- How many complete jobs there are, the moment of the first, and the next ones to go, each with its score: as many as are asked for. What is completed later than the last
-- of these comes behind them, so that they are read once for many completions.
local function look_at_complete(count)
  local list = zset.ask('ZRANGE', key.completed, 0, count - 1, 'WITHSCORES')
  local complete = { count = call('ZCARD', key.completed), list = list, at = 1, first = tonumber(list[2]) or huge, last = tonumber(list[#list]) or -huge }
  known.complete = complete
  return complete
end

-- One more is complete.
local function count_complete()
  local complete = known.complete
  if not complete then return end
  complete.count = complete.count + 1
  if now <= complete.last then complete.list, complete.at, complete.last = {}, 1, -huge end
  if now < complete.first then complete.first = now end
end

local function drop_first(complete)
  local list, at = complete.list, complete.at
  drop(list[at])
  complete.count, complete.at, complete.first = complete.count - 1, at + 2, tonumber(list[at + 3])
  if not complete.first then known.complete = nil end
end

-- Forgets complete jobs that are too old, then those that are too many.
local function drop_old()
  local oldest, max = bounds()
  local too_old, too_many = 0, 0
  while true do
    local complete = known.complete or look_at_complete(1)
    local is_old = complete.first <= oldest and too_old < DROPPED_MAX and too_many == 0
    if not is_old and (complete.count <= max or too_many == DROPPED_MAX) then return end
    -- Where one goes more will, and it may be one that came in since.
    if not complete.list[complete.at + 2] then complete = look_at_complete(OLDEST_MAX) end
    if is_old then too_old = too_old + 1 else too_many = too_many + 1 end
    drop_first(complete)
  end
end

-- What is the same for all that a worker completes of a queue at one moment.
local function closing_of(queue, worker)
  local last = known.closing
  if last and last.now == now and last.queue == queue and last.worker == worker then return last end
  local oldest, max = bounds()
  zset.sure(keys_of(queue).locks)
  zset.sure(jobs_of(worker))
  -- This is read for every completion, and the first time it shows that it can be written.
  if not known.complete then look_at_complete(1) end
  last = { now = now, queue = queue, worker = worker, locks = keys_of(queue).locks, jobs = jobs_of(worker), entry = job.done_entry(), time = job.time_text(),
    score = exact(now), oldest = oldest, max = max }
  known.closing = last
  return last
end

-- Takes a job that was completed away from its holder.
local function take_back(closing, jid, time)
  local queue, spans = closing.queue, closing.spans
  if spans and spans.owner == closing and spans.time == time then
    spans.times = spans.times + 1
  else
    closing.spans = stats.measure('run', queue, time, closing)
  end
  zset.remove_from_both(closing.locks, closing.jobs, jid)
  if known.places[queue] ~= false then order.freed(queue) end
  if not (known.silent or say.is_silent()) then say.milestone(jid, 'Completed') end
end

-- Says that a job is complete.
local function tell(jid, queue)
  if say.is_heard() then say.on(key.log, '{"jid":' .. quote(jid) .. ',"event":"completed","queue":' .. quote_name(queue) .. '}') end
  if say.listening() then say.event('Completed', { jid = jid, queue = queue }) end
end

-- Completes a job for good.
local function close(closing, jid, at, retries, token, data, dependents)
  if not (known.silent or say.is_silent()) then tell(jid, closing.queue) end
  local ended = token and token .. ' complete' or ''
  if data then
    call('HSET', at, 'state', 'complete', 'worker', '', 'failure', '{}', 'queue', '', 'expires', '0', 'remaining', retries,
      'time', closing.time, 'gt-ended', ended, 'data', data)
  else
    call('HSET', at, 'state', 'complete', 'worker', '', 'failure', '{}', 'queue', '', 'expires', '0', 'remaining', retries,
      'time', closing.time, 'gt-ended', ended)
  end
  zset.add(key.completed, closing.score, jid)
  count_complete()
  if dependents then release_dependents(jid, dependents) end
end

-- The same as `complete` for whoever holds a job by a token and says nothing else, if nothing is true of the job beyond Qless and its holder was not warned.
-- Answers nothing, and does nothing, if it is not like that.
local function complete_plain(jid, token)
  local at = key.job .. jid
  local found = job.read_held(at)
  local queue, worker, time = found[2], found[3], found[4]
  if found[1] ~= 'running' or not queue or not worker or not time or found[6] or found[7] then return false end
  if found[8] ~= token .. ' ' .. time .. ' ' .. worker then return false end
  local closing, dependents = closing_of(queue, worker), not known.alone and check_dependents(jid)
  job.append(at, closing.entry)
  take_back(closing, jid, time)
  close(closing, jid, at, found[5] or '0', token, nil, dependents)
  local complete = known.complete
  if not complete or complete.count > closing.max or complete.first <= closing.oldest then drop_old() end
  return true
end

-- Whether nobody waits for any of the jobs of a run.
local function are_alone(run)
  local list, keys = run.list, {}
  for place = 1, run.count do keys[place] = key.job .. list[2 * place - 1] .. '-dependents' end
  return not any_exists(keys)
end

-- Completes a run of plain jobs from a place on, up to the first that is not as plain. Answers the place of the last one that was done.
function finish.run(run, first)
  if first == 1 then known.alone = are_alone(run) end
  local list = run.list
  for place = first, run.count do
    run.place = place
    -- A token has a second number behind a point, which is nought here.
    local token = list[2 * place]
    if byte(token, -2) ~= POINT or not complete_plain(list[2 * place - 1], sub(token, 1, -3)) then return place - 1 end
  end
  return run.count
end

-- asked: jid, holder, queue, data, next { queue, delay, depends, cycles }, result
function finish.complete(asked)
  local of = job.load_held(asked.jid)
  if not job.is_held(of, asked.holder) then
    local how = job.ended(of, asked.holder)
    if how and how ~= 'failed' and (how == 'complete') == (asked.next == nil) then return how end
    job.refuse_holder(of, asked.holder)
  end
  job.check_queue(of, asked.queue)
  local on = asked.next
  local open
  if on then
    open = job.open(of.jid, on.depends)
    job.check_cycles(of.jid, open, on.cycles)
  else
    side.check_result(of, asked.result)
  end

  local jid, queue, worker = of.jid, of.queue, of.worker
  local token = asked.holder.token or job.token(of)
  local closing, dependents = closing_of(queue, worker), not on and check_dependents(jid)
  if of.terms or of.grace then job.sure(of) end
  if on then
    order.sure(on.queue)
    zset.sure(keys_of(on.queue).scheduled)
    zset.sure(keys_of(on.queue).depends)
    job.register(on.queue)
  end
  job.append(of.at, closing.entry)
  take_back(closing, jid, of.time)
  if of.grace then job.unwarn(of) end
  if of.terms then
    side.end_attempt(of)
    side.let_go(of)
  end
  if on then return finish.advance(of, token, asked, open) end

  close(closing, jid, of.at, of.retries, token, asked.data, dependents)
  of.state, of.queue, of.worker = 'complete', '', ''
  if of.terms then side.conclude(of, 'Completed', asked.result) end
  drop_old()
  return 'complete'
end

-- Completes a job into another queue.
function finish.advance(of, token, asked, open)
  local on, jid = asked.next, of.jid
  say.on(key.log, '{"jid":' .. quote(jid) .. ',"to":' .. quote_name(on.queue) .. ',"event":"advanced","queue":' .. quote_name(of.queue) .. '}')
  if say.listening() then say.event('Advanced', { jid = jid, queue = of.queue, to = on.queue }) end
  job.append(of.at, job.put_entry(on.queue))
  local due = on.delay > 0 and finite(now + on.delay) or nil
  local how
  if #open > 0 then
    how = 'depends'
  elseif due and #on.depends == 0 then
    how = 'scheduled'
  else
    -- A delay is dropped if all of what the job should wait for is done already.
    how = 'waiting'
  end
  -- One that is scheduled reads `waiting`, as in Qless.
  of.state = how == 'depends' and 'depends' or 'waiting'
  of.queue, of.worker = on.queue, ''
  local fields = { 'state', of.state, 'worker', '', 'failure', '{}', 'queue', on.queue, 'expires', '0', 'remaining', of.retries,
    'time', job.time_text(), 'gt-ended', token and token .. ' ' .. how or '' }
  if asked.data then
    fields[#fields + 1] = 'data'
    fields[#fields + 1] = asked.data
  end
  if how == 'depends' and due then
    fields[#fields + 1] = 'scheduled'
    fields[#fields + 1] = due
  end
  call('HSET', of.at, unpack(fields))
  if how == 'depends' then
    for _, other in ipairs(open) do job.link(jid, other) end
    zset.add(key.queue .. on.queue .. '-depends', now, jid)
  elseif how == 'scheduled' then
    put.schedule(of, due)
  else
    order.enter(on.queue, jid, tonumber(call('HGET', of.at, 'priority')) or 0, now)
    side.enter(of)
  end
  side.take_key(of)
  return how
end

-- Puts a job into a group of failed ones. Its attempt, if one was under way, is over.
local function into_group(of, failure, group, ended, data)
  local jid = of.jid
  zset.remove(key.queue .. of.queue .. '-work', jid)
  zset.remove(key.queue .. of.queue .. '-locks', jid)
  zset.remove(key.queue .. of.queue .. '-scheduled', jid)
  known.ahead[of.queue] = nil
  if of.state == 'running' then order.freed(of.queue) end
  job.unwarn(of)
  if of.worker ~= '' then zset.remove(jobs_of(of.worker), jid) end
  stats.failed(of.queue)
  local fields = { 'state', 'failed', 'worker', '', 'expires', '', 'failure', failure }
  if ended then
    fields[#fields + 1] = 'gt-ended'
    fields[#fields + 1] = ended
  end
  if data then
    fields[#fields + 1] = 'data'
    fields[#fields + 1] = data
  end
  call('HSET', of.at, unpack(fields))
  side.end_attempt(of)
  side.let_go(of)
  side.leave(of)
  of.state, of.worker = 'failed', ''
  call('SADD', key.failures, group)
  call('LPUSH', key.group .. group, jid)
end

local function failed_text(jid, worker, group, message)
  return '{"message":' .. quote(message) .. ',"jid":' .. quote(jid) .. ',"group":' .. quote(group) .. ',"event":"failed","worker":'
    .. quote_name(worker) .. '}'
end

-- asked: jid, holder, group, message, data, result
function finish.fail(asked)
  local of = job.load_held(asked.jid)
  if not job.is_held(of, asked.holder) then
    if job.ended(of, asked.holder) == 'failed' then return end
    job.refuse_holder(of, asked.holder)
  end
  side.check_result(of, asked.result)
  local jid, worker, group, message = of.jid, of.worker, asked.group, asked.message
  job.sure(of)
  job.sure_of_group(group)
  say.on(key.log, failed_text(jid, worker, group, message))
  if say.listening() then
    say.event('Failed', { jid = jid, queue = of.queue, worker = worker, group = group, message = message, by = 'Worker' })
  end
  say.milestone(jid, 'Failed')
  job.append(of.at, job.failed_entry(group, worker))
  local token = asked.holder.token or job.token(of)
  into_group(of, job.failure_text(group, message, floor(now), worker), group, token and token .. ' failed' or '', asked.data)
  side.conclude(of, { Failed = { group = group, message = message } }, asked.result)
end

-- Fails a job that no worker said had failed. `failure` is who said so and when, if a worker did after all.
function finish.give_up(of, group, message, by, failure)
  local jid, worker = of.jid, of.worker
  job.sure(of)
  job.sure_of_group(group)
  -- It was nobody's when it was late.
  local last = by ~= 'Expired' and worker ~= '' and worker or nil
  say.milestone(jid, 'Failed')
  -- A retry that used up the last chance says nothing on the log, as in Qless.
  if by ~= 'Retry' then say.on(key.log, failed_text(jid, last or '', group, message)) end
  if say.listening() then
    say.event('Failed', { jid = jid, queue = of.queue, worker = last, group = group, message = message, by = by })
  end
  job.append(of.at, job.failed_entry(group))
  into_group(of, failure or job.failure_text(group, message, now, ''), group, of.state == 'running' and '' or nil)
  side.conclude(of, { Failed = { group = group, message = message } })
end

-- The group and the message of a job whose retries are used up.
function finish.exhausted(of)
  return 'failed-retries-' .. of.queue, 'Job exhausted retries in queue "' .. of.queue .. '"'
end

-- Takes one retry from a job whose attempt is over, and says how many are left.
function finish.spend(of)
  local remaining = tonumber(of.remaining) - 1
  of.remaining = remaining
  call('HSET', of.at, 'remaining', remaining)
  if of.grace then
    job.unwarn(of)
    call('HDEL', of.at, 'grace')
    of.grace = false
  end
  if of.worker ~= '' then zset.remove(jobs_of(of.worker), of.jid) end
  return remaining
end

-- Puts a job back into its queue after an attempt that came to nothing. The hash goes on to name the worker and the deadline, as in Qless.
function finish.try_again(of, delay, failure)
  local queue, jid = of.queue, of.jid
  zset.remove(keys_of(queue).locks, jid)
  order.freed(queue)
  side.end_attempt(of)
  job.forget_ended(of)
  of.state = delay > 0 and 'scheduled' or 'waiting'
  if failure then
    call('HSET', of.at, 'state', of.state, 'failure', failure)
  else
    call('HSET', of.at, 'state', of.state)
  end
  if delay > 0 then
    put.schedule(of, finite(now + delay))
  else
    order.enter(queue, jid, tonumber(of.priority), now)
    side.enter(of)
  end
  if say.listening() then say.event('Retried', { jid = jid, queue = queue }) end
  side.abandon_if_unwanted(of)
end

-- asked: jid, holder, queue, delay, chance, group, message
function finish.retry(asked)
  local of = claimed(asked.jid, asked.holder)
  job.check_queue(of, asked.queue)
  local delay = asked.chance and side.backoff(of, asked.chance) or asked.delay
  local group, message = asked.group, asked.message
  local failure = group and message and job.failure_text(group, message, floor(now), of.worker) or nil
  job.sure(of)
  order.sure(of.queue)
  job.sure_of_group(group or (finish.exhausted(of)))
  local remaining = finish.spend(of)
  if remaining >= 0 then
    finish.try_again(of, delay, failure)
  else
    local usual_group, usual_message = finish.exhausted(of)
    finish.give_up(of, group or usual_group, failure and message or usual_message, 'Retry', failure)
  end
  return remaining
end

function finish.timeout(jids)
  local named, all = {}, {}
  for place, jid in ipairs(jids) do
    local of = job.existing(jid)
    if of.state ~= 'running' then refuse('NotRunning', { jid = jid, state = job.stands(of), qless = of.state }) end
    -- The second mention of a job would find it taken away already.
    if named[jid] then refuse('NotRunning', { jid = jid, state = 'Waiting', qless = 'stalled' }) end
    named[jid] = true
    all[place] = of
  end
  for _, of in ipairs(all) do job.sure(of) end
  for _, of in ipairs(all) do
    local jid, queue = of.jid, of.queue
    job.append(of.at, job.timed_out_entry())
    zset.remove(keys_of(queue).locks, jid)
    job.unwarn(of)
    side.end_attempt(of)
    job.forget_ended(of)
    call('HSET', of.at, 'state', 'stalled', 'expires', '0')
    of.state = 'stalled'
    order.enter_first(queue, jid)
    side.enter(of)
    if of.worker ~= '' then
      say.lock_lost(jid, of.worker)
      if say.listening() then say.event('LockLost', { jid = jid, worker = of.worker }) end
    end
    side.abandon_if_unwanted(of)
  end
end

-- Lets a job wait at the front of its queue.
function finish.to_front(of, crashed)
  local jid, queue, worker = of.jid, of.queue, of.worker
  local token = tonumber(job.token(of)) or 0
  if worker ~= '' and say.listening() then
    say.event('HandedBack', { jid = jid, queue = queue, worker = worker, crashed = crashed })
  end
  zset.remove(keys_of(queue).locks, jid)
  zset.remove(jobs_of(worker), jid)
  job.unwarn(of)
  side.end_attempt(of)
  call('HSET', of.at, 'state', 'waiting', 'worker', '', 'expires', '0')
  call('HDEL', of.at, 'grace', 'gt-ended')
  of.state, of.worker = 'waiting', ''
  order.enter_front(queue, jid, tonumber(of.priority), token)
  side.enter(of)
  side.abandon_if_unwanted(of)
end

function finish.hand_back(asked)
  local of = claimed(asked.jid, asked.holder)
  job.sure(of)
  zset.sure(key.first .. of.queue .. ':' .. exact(tonumber(of.priority)))
  job.append(of.at, job.handed_back_entry(of.worker))
  finish.to_front(of, false)
end

-- Moves the oldest failed jobs of a group into a queue.
function finish.unfail(queue, group, count)
  local at = key.group .. group
  local oldest = call('LRANGE', at, -count, -1)
  local moved = 0
  order.sure(queue)
  for place = #oldest, 1, -1 do
    local of = job.load(oldest[place])
    if of then
      moved = moved + 1
      job.append(of.at, job.put_entry(queue))
      call('HSET', of.at, 'state', 'waiting', 'worker', '', 'expires', '0', 'queue', queue, 'remaining', of.retries)
      of.state, of.queue = 'waiting', queue
      side.renew(of)
      side.take_key(of)
      order.enter(queue, of.jid, tonumber(of.priority), now)
      side.enter(of)
    end
  end
  if #oldest > 0 then
    call('LTRIM', at, 0, -count - 1)
    if call('EXISTS', at) == 0 then call('SREM', key.failures, group) end
  end
  return moved
end

function finish.cancel(jids)
  local named = set_of(jids)
  for _, jid in ipairs(jids) do
    for _, dependent in ipairs(job.dependents(jid)) do
      if not named[dependent] then refuse('IsDependency', { jid = jid, dependent = dependent }) end
    end
  end
  for _, jid in ipairs(jids) do
    local of = job.load(jid)
    if of then
      job.sure(of)
      job.sure_of_tags(job.tags(of))
    end
  end
  local gone = 0
  for _, jid in ipairs(jids) do
    local of = job.load(jid)
    if not of or of.state ~= 'complete' then
      local queue = of and quote_name(of.queue) or 'false'
      local worker = of and quote_name(of.worker) or 'false'
      local text = '{"jid":' .. quote(jid) .. ',"queue":' .. queue .. ',"event":"canceled","worker":' .. worker .. '}'
      say.on(key.log, text)
      if of and of.worker ~= '' then say.on(key.worker .. of.worker, text) end
      if say.listening() then events.canceled(jid, of) end
      say.milestone(jid, 'Canceled')
      if of then
        side.tell(of, { Ended = { 'Canceled', { 1, NO_BYTES } } })
        job.remove(of)
        call('DEL', of.at .. '-dependents')
        gone = gone + 1
      end
    end
  end
  return gone
end
