-- Finishing attempts: heartbeat extends the lock; complete, fail, retry and timeout end the attempt; unfail
-- and cancel handle the job afterwards.

local sub, byte = string.sub, string.byte
local POINT = byte('.')
local DROPPED_MAX = 1000 -- old jobs that one completion removes at most
local OLDEST_MAX = 128 -- how many of the oldest are read at once

-- The job, if the caller has its lock.
local function held_job(jid, holder)
  local of = job.existing(jid)
  if not job.is_held(of, holder) then job.refuse_holder(of, holder) end
  return of
end
finish.held_job = held_job

local function seen(worker)
  if cache.seen[worker] ~= now then
    zset.check_type(key.workers)
    cache.seen[worker] = now
    zset.add(key.workers, now, worker)
  end
end
finish.seen = seen

local function lock(queue, jid, deadline)
  zset.add(keys_of(queue).locks, deadline, jid)
  local first = cache.locks[queue]
  if first and deadline < first then cache.locks[queue] = deadline end
end
finish.lock = lock

function finish.heartbeat(asked)
  local of = job.load_held(asked.jid)
  if not job.is_held(of, asked.holder) then job.refuse_holder(of, asked.holder) end
  local deadline = finite(now + option.heartbeat(of.queue))
  zset.check_type(jobs_of(of.worker))
  zset.check_type(keys_of(of.queue).locks)
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

-- Fails if the dependents of a job cannot be released. Returns them.
local function check_dependents(jid)
  local dependents = call('SMEMBERS', key.job .. jid .. '-dependents')
  for _, dependent in ipairs(dependents) do
    call('SCARD', key.job .. dependent .. '-dependencies')
    local queue = call('HGET', key.job .. dependent, 'queue')
    if queue and queue ~= '' then
      order.check_type(queue)
      zset.check_type(keys_of(queue).depends)
      zset.check_type(keys_of(queue).scheduled)
    end
  end
  return dependents
end

-- Lets a job that depends on no other any more run, or wait for its time.
function finish.release(of)
  zset.remove(key.queue .. of.queue .. '-depends', of.jid)
  policies.leave(of)
  if of.scheduled then
    call('HSET', of.at, 'state', 'scheduled')
    call('HDEL', of.at, 'scheduled')
    of.state = 'scheduled'
    put.schedule(of, tonumber(of.scheduled))
  else
    put.release(of)
  end
end

-- Releases the jobs that waited for this one only, in the order of their jids.
local function release_dependents(jid, dependents)
  if #dependents == 0 then return end
  local of_it = key.job .. jid .. '-dependents'
  for _, dependent in ipairs(sorted(dependents)) do
    local at = key.job .. dependent .. '-dependencies'
    if call('SREM', at, jid) == 1 and call('EXISTS', at) == 0 then
      local of = job.load(dependent)
      if of and of.queue ~= '' and of.state == 'depends' then finish.release(of) end
    end
  end
  call('DEL', of_it)
end

-- Drops a completed job, as Qless does: dependencies of others and tracking stay.
local function drop(jid)
  local at = key.job .. jid
  local found = call('HMGET', at, 'tags', 'gt-more')
  zset.remove_earlier(key.completed, jid)
  -- Most have neither tags nor options.
  if found[2] or (found[1] and found[1] ~= '{}') then
    local of = job.load(jid)
    if not of then return end
    job.unindex_tags(of)
    put_options.forget(of)
  end
  call('DEL', at, at .. '-history')
end

-- Drops the oldest completed job.
function finish.drop(jid)
  cache.complete = nil
  drop(jid)
end

-- The time up to which completed jobs are too old, and how many may stay.
local function bounds()
  local keep = cache.keep
  if not keep then
    keep = { age = option.number('jobs-history'), count = option.count('jobs-history-count') }
    cache.keep = keep
  end
  return finite(now - keep.age), keep.count
end

-- How many completed jobs there are, the time of the first, and the next ones to drop, each with its score.
-- Later completions come behind these, so they are read once for many completions.
local function read_complete(count)
  local list = zset.read('ZRANGE', key.completed, 0, count - 1, 'WITHSCORES')
  local complete = { count = call('ZCARD', key.completed), list = list, at = 1,
    first = tonumber(list[2]) or huge, last = tonumber(list[#list]) or -huge }
  cache.complete = complete
  return complete
end

local function count_complete()
  local complete = cache.complete
  if not complete then return end
  complete.count = complete.count + 1
  if now <= complete.last then complete.list, complete.at, complete.last = {}, 1, -huge end
  if now < complete.first then complete.first = now end
end

local function drop_first(complete)
  local list, at = complete.list, complete.at
  drop(list[at])
  complete.count, complete.at, complete.first = complete.count - 1, at + 2, tonumber(list[at + 3])
  if not complete.first then cache.complete = nil end
end

-- Drops completed jobs that are too old, then those that are too many.
local function drop_old()
  local oldest, max = bounds()
  local too_old, too_many = 0, 0
  while true do
    local complete = cache.complete or read_complete(1)
    local is_old = complete.first <= oldest and too_old < DROPPED_MAX and too_many == 0
    if not is_old and (complete.count <= max or too_many == DROPPED_MAX) then return end
    -- More will follow, possibly one that was completed since.
    if not complete.list[complete.at + 2] then complete = read_complete(OLDEST_MAX) end
    if is_old then too_old = too_old + 1 else too_many = too_many + 1 end
    drop_first(complete)
  end
end

-- What is the same for all completions of a worker in a queue at one time.
local function context_of(queue, worker)
  local last = cache.finish_context
  if last and last.now == now and last.queue == queue and last.worker == worker then return last end
  local oldest, max = bounds()
  zset.check_type(keys_of(queue).locks)
  zset.check_type(jobs_of(worker))
  -- Read for every completion; the first read also checks the type before a write.
  if not cache.complete then read_complete(1) end
  last = { now = now, queue = queue, worker = worker, locks = keys_of(queue).locks, jobs = jobs_of(worker),
    entry = job.done_entry(), time = job.time_text(),
    score = exact(now), oldest = oldest, max = max }
  cache.finish_context = last
  return last
end

-- Removes a completed job from its holder, or from its queue if its attempt had ended by its deadline.
local function remove_from_holder(context, jid, time, late)
  local queue, spans = context.queue, context.spans
  if spans and spans.owner == context and spans.time == time then
    spans.times = spans.times + 1
  else
    context.spans = stats.measure('run', queue, time, context)
  end
  if late then
    job.detach(late)
    put_options.unindex_expiry(late)
  else
    zset.remove_from_both(context.locks, context.jobs, jid)
    if cache.places[queue] ~= false then order.freed(queue) end
  end
  if not (cache.unpublished or publish.is_not_needed()) then publish.milestone(jid, 'Completed') end
end

-- Publishes a completion.
local function publish_completed(jid, queue)
  if publish.has_subscribers() then
    publish.message(key.log, '{"jid":' .. quote(jid) .. ',"event":"completed","queue":' .. quote_name(queue)
      .. '}')
  end
  if publish.has_event_subscribers() then publish.event('Completed', { jid = jid, queue = queue }) end
end

-- Completes a job for good.
local function close(context, jid, at, retries, token, data, dependents)
  if not (cache.unpublished or publish.is_not_needed()) then publish_completed(jid, context.queue) end
  local ended = token and token .. ' complete' or ''
  if data then
    call('HSET', at, 'state', 'complete', 'worker', '', 'failure', '{}', 'queue', '', 'expires', '0',
      'remaining', retries, 'time', context.time, 'gt-ended', ended, 'data', data)
  else
    call('HSET', at, 'state', 'complete', 'worker', '', 'failure', '{}', 'queue', '', 'expires', '0',
      'remaining', retries, 'time', context.time, 'gt-ended', ended)
  end
  zset.add(key.completed, context.score, jid)
  count_complete()
  if dependents then release_dependents(jid, dependents) end
end

-- `complete` for a holder with a token and no options but a result, which nobody waits for if the job has no
-- options. Otherwise, or if the holder was warned, does nothing and returns false.
local function complete_plain(jid, token)
  local at = key.job .. jid
  local found = job.read_held(at)
  local queue, worker, time = found[2], found[3], found[4]
  if found[1] ~= 'running' or not queue or not worker or not time or found[6] or found[7] then
    return false
  end
  if found[8] ~= token .. ' ' .. time .. ' ' .. worker then return false end
  local context, dependents = context_of(queue, worker), not cache.alone and check_dependents(jid)
  job.append(at, context.entry)
  remove_from_holder(context, jid, time)
  close(context, jid, at, found[5] or '0', token, nil, dependents)
  local complete = cache.complete
  if not complete or complete.count > context.max or complete.first <= context.oldest then drop_old() end
  return true
end

finish.complete_plain = complete_plain

-- Whether none of some jobs has dependents. `step` is the distance between two jids in the list.
local function have_no_dependents(list, step)
  local keys = {}
  for place = 1, #list, step do keys[#keys + 1] = key.job .. list[place] .. '-dependents' end
  return not any_exists(keys)
end
finish.have_no_dependents = have_no_dependents

-- Executes a run of plain completions from an index on, up to the first that is not plain. Returns the index
-- of the last one executed.
function finish.run(run, first)
  if first == 1 then cache.alone = have_no_dependents(run.list, 2) end
  local list = run.list
  for place = first, run.count do
    run.place = place
    -- A token has a second number after a point, which is 0 here.
    local token = list[2 * place]
    if byte(token, -2) ~= POINT or not complete_plain(list[2 * place - 1], sub(token, 1, -3)) then
      return place - 1
    end
  end
  return run.count
end

-- asked: jid, holder, queue, data, next { queue, delay, depends, cycles }, result
function finish.complete(asked)
  local of = job.load_held(asked.jid)
  local late
  if not job.is_held(of, asked.holder) then
    local how = job.ended(of, asked.holder)
    late = how == 'deadline' and job.is_late(of, asked.holder)
    if not late then
      local repeated = how and how ~= 'failed' and how ~= 'deadline'
      if repeated and (how == 'complete') == (asked.next == nil) then return how end
      job.refuse_holder(of, asked.holder)
    end
  end
  job.check_queue(of, asked.queue)
  local on = asked.next
  local open
  if on then
    open = job.incomplete(of.jid, on.depends)
    job.check_cycles(of.jid, open, on.cycles)
  else
    put_options.check_result(of, asked.result)
  end

  local jid, queue, worker = of.jid, of.queue, of.worker
  local token = asked.holder.token or job.token(of)
  local context, dependents = context_of(queue, worker), not on and check_dependents(jid)
  if of.terms or of.grace or late then job.check_type(of) end
  if on then
    order.check_type(on.queue)
    zset.check_type(keys_of(on.queue).scheduled)
    zset.check_type(keys_of(on.queue).depends)
    job.register(on.queue)
  end
  job.append(of.at, context.entry)
  remove_from_holder(context, jid, of.time, late and of)
  if of.grace then job.clear_warning(of) end
  if of.terms then
    put_options.end_attempt(of)
    put_options.release_key(of)
  end
  if on then return finish.advance(of, token, asked, open) end

  close(context, jid, of.at, of.retries, token, asked.data, dependents)
  of.state, of.queue, of.worker = 'complete', '', ''
  if of.terms then put_options.conclude(of, 'Completed', asked.result) end
  drop_old()
  return 'complete'
end

-- Completes a job into another queue.
function finish.advance(of, token, asked, open)
  local on, jid = asked.next, of.jid
  publish.message(key.log, '{"jid":' .. quote(jid) .. ',"to":' .. quote_name(on.queue)
    .. ',"event":"advanced","queue":' .. quote_name(of.queue) .. '}')
  if publish.has_event_subscribers() then
    publish.event('Advanced', { jid = jid, queue = of.queue, to = on.queue })
  end
  job.append(of.at, job.put_entry(on.queue))
  local due = on.delay > 0 and finite(now + on.delay) or nil
  local how
  if #open > 0 then
    how = 'depends'
  elseif due and #on.depends == 0 then
    how = 'scheduled'
  else
    -- A delay is dropped if all dependencies are complete already.
    how = 'waiting'
  end
  -- A scheduled one reads `waiting`, as in Qless.
  of.state = how == 'depends' and 'depends' or 'waiting'
  of.queue, of.worker = on.queue, ''
  local fields = { 'state', of.state, 'worker', '', 'failure', '{}', 'queue', on.queue, 'expires', '0',
    'remaining', of.retries, 'time', job.time_text(), 'gt-ended', token and token .. ' ' .. how or '' }
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
    policies.enter(of)
  elseif how == 'scheduled' then
    put.schedule(of, due)
  else
    order.enter(on.queue, jid, tonumber(call('HGET', of.at, 'priority')) or 0, now)
    put_options.index_expiry(of)
  end
  put_options.claim_key(of)
  return how
end

-- Puts a job into a failure group. Its attempt, if one was running, ends.
local function into_group(of, failure, group, ended, data)
  local jid = of.jid
  local dependents = call('SMEMBERS', of.at .. '-dependents')
  zset.remove(key.queue .. of.queue .. '-work', jid)
  zset.remove(key.queue .. of.queue .. '-locks', jid)
  zset.remove(key.queue .. of.queue .. '-scheduled', jid)
  cache.ahead[of.queue] = nil
  if of.state == 'running' then order.freed(of.queue) end
  job.clear_warning(of)
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
  put_options.end_attempt(of)
  put_options.release_key(of)
  put_options.unindex_expiry(of)
  of.state, of.worker = 'failed', ''
  call('SADD', key.failures, group)
  call('LPUSH', key.group .. group, jid)
  if #dependents > 0 then policies.failed(dependents) end
end

local function failed_text(jid, worker, group, message)
  return '{"message":' .. quote(message) .. ',"jid":' .. quote(jid) .. ',"group":' .. quote(group)
    .. ',"event":"failed","worker":' .. quote_name(worker) .. '}'
end

-- asked: jid, holder, group, message, data, result
function finish.fail(asked)
  local of = job.load_held(asked.jid)
  if not job.is_held(of, asked.holder) then
    if job.ended(of, asked.holder) == 'failed' then return end
    if not job.is_late(of, asked.holder) then job.refuse_holder(of, asked.holder) end
  end
  put_options.check_result(of, asked.result)
  local jid, worker, group, message = of.jid, of.worker, asked.group, asked.message
  job.check_type(of)
  job.check_group_type(group)
  publish.message(key.log, failed_text(jid, worker, group, message))
  if publish.has_event_subscribers() then
    publish.event('Failed', { jid = jid, queue = of.queue, worker = worker, group = group, message = message,
      by = 'Worker' })
  end
  publish.milestone(jid, 'Failed')
  job.append(of.at, job.failed_entry(group, worker))
  local token = asked.holder.token or job.token(of)
  into_group(of, job.failure_text(group, message, floor(now), worker), group,
    token and token .. ' failed' or '', asked.data)
  put_options.conclude(of, { Failed = { group = group, message = message } }, asked.result)
end

-- Fails a job without a worker's report. `failure` is a worker's last report and its time, if there is one.
function finish.give_up(of, group, message, by, failure)
  local jid, worker = of.jid, of.worker
  job.check_type(of)
  job.check_group_type(group)
  -- An expired job had no holder.
  local last = by ~= 'Expired' and worker ~= '' and worker or nil
  publish.milestone(jid, 'Failed')
  -- A retry that used up the last attempt is not published on the log, as in Qless.
  if by ~= 'Retry' then publish.message(key.log, failed_text(jid, last or '', group, message)) end
  if publish.has_event_subscribers() then
    publish.event('Failed', { jid = jid, queue = of.queue, worker = last, group = group, message = message,
      by = by })
  end
  job.append(of.at, job.failed_entry(group))
  into_group(of, failure or job.failure_text(group, message, now, ''), group, of.state == 'running' and ''
    or nil)
  put_options.conclude(of, { Failed = { group = group, message = message } })
end

-- The group and message of a job without retries left.
function finish.exhausted(of)
  return 'failed-retries-' .. of.queue, 'Job exhausted retries in queue "' .. of.queue .. '"'
end

-- Takes one retry from a job whose attempt has ended, and returns how many are left.
function finish.spend_retry(of)
  local remaining = tonumber(of.remaining) - 1
  of.remaining = remaining
  call('HSET', of.at, 'remaining', remaining)
  if of.grace then
    job.clear_warning(of)
    call('HDEL', of.at, 'grace')
    of.grace = false
  end
  if of.worker ~= '' then zset.remove(jobs_of(of.worker), of.jid) end
  return remaining
end

-- Puts a job back into its queue after a failed attempt. The hash keeps the worker and the deadline, as in
-- Qless. `timed_out` is the attempt's token if it ended by its deadline.
function finish.try_again(of, delay, failure, timed_out)
  local queue, jid = of.queue, of.jid
  zset.remove(keys_of(queue).locks, jid)
  order.freed(queue)
  put_options.end_attempt(of)
  if timed_out then call('HSET', of.at, 'gt-ended', timed_out .. ' deadline') else job.forget_ended(of) end
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
    put_options.index_expiry(of)
  end
  if publish.has_event_subscribers() then publish.event('Retried', { jid = jid, queue = queue }) end
  put_options.remove_if_orphaned(of)
end

-- asked: jid, holder, queue, delay, chance, group, message
function finish.retry(asked)
  local of = held_job(asked.jid, asked.holder)
  job.check_queue(of, asked.queue)
  local delay = asked.delay
  if asked.chance then
    local own = put_options.backoff(of, asked.chance)
    if own then
      delay = own
    elseif delay <= 0 then
      delay = put_options.default_backoff(of, asked.chance)
    end
  end
  local group, message = asked.group, asked.message
  local failure = group and message and job.failure_text(group, message, floor(now), of.worker) or nil
  job.check_type(of)
  order.check_type(of.queue)
  job.check_group_type(group or (finish.exhausted(of)))
  attempts.add(of, 'Retried', group, message)
  local remaining = finish.spend_retry(of)
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
    if of.state ~= 'running' then
      refuse('NotRunning', { jid = jid, state = job.state_of(of), qless = of.state })
    end
    -- A job named twice would already have been taken away.
    if named[jid] then refuse('NotRunning', { jid = jid, state = 'Waiting', qless = 'stalled' }) end
    named[jid] = true
    all[place] = of
  end
  for _, of in ipairs(all) do
    job.check_type(of)
    order.check_type(of.queue)
  end
  for _, of in ipairs(all) do
    local jid, queue = of.jid, of.queue
    job.append(of.at, job.timed_out_entry())
    attempts.add(of, 'TakenAway')
    zset.remove(keys_of(queue).locks, jid)
    job.clear_warning(of)
    put_options.end_attempt(of)
    job.forget_ended(of)
    call('HSET', of.at, 'state', 'stalled', 'expires', '0')
    of.state = 'stalled'
    order.enter_first(queue, jid)
    put_options.index_expiry(of)
    if of.worker ~= '' then
      publish.lock_lost(jid, of.worker)
      if publish.has_event_subscribers() then publish.event('LockLost', { jid = jid, worker = of.worker }) end
    end
    put_options.remove_if_orphaned(of)
  end
end

-- Takes a job from its worker, and puts it at the front of its queue, or schedules it if it is delayed.
function finish.to_front(of, crashed, delay)
  local jid, queue, worker = of.jid, of.queue, of.worker
  local token = tonumber(job.token(of)) or 0
  if worker ~= '' and publish.has_event_subscribers() then
    publish.event('HandedBack', { jid = jid, queue = queue, worker = worker, crashed = crashed })
  end
  zset.remove(keys_of(queue).locks, jid)
  zset.remove(jobs_of(worker), jid)
  job.clear_warning(of)
  put_options.end_attempt(of)
  local is_delayed = delay and delay > 0
  of.state, of.worker = is_delayed and 'scheduled' or 'waiting', ''
  call('HSET', of.at, 'state', of.state, 'worker', '', 'expires', '0')
  call('HDEL', of.at, 'grace', 'gt-ended')
  if is_delayed then
    put.schedule(of, finite(now + delay))
    order.freed(queue)
  else
    order.enter_front(queue, jid, tonumber(of.priority), token)
    put_options.index_expiry(of)
  end
  put_options.remove_if_orphaned(of)
end

-- asked: jid, holder, message, delay
function finish.hand_back(asked)
  local of = held_job(asked.jid, asked.holder)
  job.check_type(of)
  order.check_type(of.queue)
  zset.check_type(key.first .. of.queue .. ':' .. exact(tonumber(of.priority)))
  attempts.add(of, 'Released', nil, asked.message)
  finish.to_front(of, false, asked.delay)
end

-- Makes a failed job wait in a queue. The caller takes it out of its group.
function finish.revive(of, queue, group)
  set_aside.left(of, group)
  local again = policies.take_dropped(of, group)
  local state = again[1] and 'depends' or 'waiting'
  job.append(of.at, job.put_entry(queue))
  call('HSET', of.at, 'state', state, 'worker', '', 'expires', '0', 'queue', queue, 'remaining', of.retries)
  of.state, of.queue = state, queue
  put_options.clear_expiry(of)
  put_options.claim_key(of)
  if again[1] then
    for _, on in ipairs(again) do job.link(of.jid, on) end
    zset.add(keys_of(queue).depends, now, of.jid)
    policies.enter(of)
  else
    order.enter(queue, of.jid, tonumber(of.priority), now)
    put_options.index_expiry(of)
  end
  -- The queue need not be listed, and then is found here only.
  if not cache.registered[queue] and not call('ZSCORE', key.queues, queue) then
    call('SADD', key.unlisted, queue)
  end
end

-- Moves the oldest failed jobs of a group into a queue.
function finish.unfail(queue, group, count)
  local at = key.group .. group
  local oldest = call('LRANGE', at, -count, -1)
  local moved = 0
  order.check_type(queue)
  for place = #oldest, 1, -1 do
    local of = job.load(oldest[place])
    if of then
      moved = moved + 1
      finish.revive(of, queue, group)
    end
  end
  if #oldest > 0 then
    call('LTRIM', at, 0, -count - 1)
    if call('EXISTS', at) == 0 then call('SREM', key.failures, group) end
  end
  return moved
end

-- Cancels jobs; with `cascade` also those that depend on them. `because` and `by` say why and who asks, and may be
-- missing.
function finish.cancel(jids, because, cascade, by)
  if cascade then
    jids = policies.with_dependents(jids)
  else
    local named = set_of(jids)
    for _, jid in ipairs(jids) do
      for _, dependent in ipairs(job.dependents(jid)) do
        if not named[dependent] then refuse('IsDependency', { jid = jid, dependent = dependent }) end
      end
    end
  end
  for _, jid in ipairs(jids) do
    local of = job.load(jid)
    if of then
      job.check_type(of)
      job.check_tag_types(job.tags(of))
    end
  end
  canceled.check_type()
  local gone = 0
  for _, jid in ipairs(jids) do
    local of = job.load(jid)
    if not of or of.state ~= 'complete' then
      local queue = of and quote_name(of.queue) or 'false'
      local worker = of and quote_name(of.worker) or 'false'
      local text = '{"jid":' .. quote(jid) .. ',"queue":' .. queue .. ',"event":"canceled","worker":'
        .. worker .. '}'
      publish.message(key.log, text)
      if of and of.worker ~= '' then publish.message(key.worker .. of.worker, text) end
      if publish.has_event_subscribers() then events.canceled(jid, of) end
      publish.milestone(jid, 'Canceled')
      if of then
        put_options.deliver(of, { Ended = { 'Canceled', { 1, NO_BYTES } } })
        canceled.add(of, by, because)
        job.remove(of)
        call('DEL', of.at .. '-dependents')
        gone = gone + 1
      end
    end
  end
  return gone
end
