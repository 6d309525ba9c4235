-- Changing jobs and queues, and counters.

local COUNTER_BYTES_MAX = 512
local ALLOTTED_MAX = 9007199254740991 -- up to here a double holds every integer

function change.priority(jid, priority)
  local of = job.existing(jid)
  call('HSET', of.at, 'priority', priority)
  if of.queue ~= '' and zset.score(key.queue .. of.queue .. '-work', jid) then
    order.enter(of.queue, jid, priority, 0)
  end
end

-- change: on or off, lists of jids; or all
function change.depend(jid, depends, cycles)
  local of = job.existing(jid)
  if of.state ~= 'depends' then
    refuse('NotInDepends', { jid = jid, state = job.state_of(of), qless = of.state })
  end
  if depends.on then
    local open = job.incomplete(jid, depends.on)
    job.check_cycles(jid, open, cycles)
    for _, on in ipairs(open) do job.link(jid, on) end
    policies.check(of)
    return
  end
  for _, on in ipairs(depends.off or job.dependencies(jid)) do job.unlink(jid, on) end
  if call('EXISTS', of.at .. '-dependencies') == 0 then
    zset.remove(key.queue .. of.queue .. '-depends', jid)
    policies.leave(of)
    put.release(of)
  end
end

function change.log(jid, message, data)
  check_size('message', message, LOG_BYTES_MAX)
  check_size('log data', data, LOG_BYTES_MAX)
  if not job.exists(jid) then refuse('NoSuchJob', { jid = jid }) end
  job.append(key.job .. jid, job.log_entry(message, data))
  job.bound_history(jid)
end

-- Returns whether anything changed.
function change.track(jid, on)
  if not job.exists(jid) then refuse('NoSuchJob', { jid = jid }) end
  local was = zset.score(key.tracked, jid) ~= nil
  publish.message(key.channel .. (on and 'track' or 'untrack'), jid)
  if publish.has_event_subscribers() then publish.event(on and 'Track' or 'Untrack', { jid = jid }) end
  if on then zset.add(key.tracked, now, jid) else zset.remove(key.tracked, jid) end
  cache.tracked, cache.unpublished = true, nil
  return was ~= on
end

function change.add_tags(jid, tags)
  at_most('tags', #tags, TAGS_MAX)
  local of = job.existing(jid)
  local all = job.tags(of)
  at_most('tags', #tags + #all, TAGS_MAX)
  local there = set_of(all)
  for _, tag in ipairs(tags) do
    job.index_tag(jid, tag)
    if not there[tag] then
      there[tag] = true
      all[#all + 1] = tag
    end
  end
  call('HSET', of.at, 'tags', list_text(all))
  return all
end

function change.remove_tags(jid, tags)
  at_most('tags', #tags, TAGS_MAX)
  local of = job.existing(jid)
  local gone, left = set_of(tags), {}
  for _, tag in ipairs(tags) do job.unindex_tag(jid, tag) end
  for _, tag in ipairs(job.tags(of)) do
    if not gone[tag] then left[#left + 1] = tag end
  end
  call('HSET', of.at, 'tags', list_text(left))
  return left
end

function change.pause(queues, on)
  at_least_one('queues', queues)
  in_parts(queues, on and 'SADD' or 'SREM', key.paused)
  for _, queue in ipairs(queues) do
    cache.paused[queue] = on
    if not on then
      out.ready[queue] = (out.ready[queue] or 0) + zset.read('ZCARD', key.queue .. queue .. '-work')
    end
  end
end

-- Allocates new numbers of a counter, and returns the first. Numbers that a double cannot hold are not given.
function change.allot(counter, count)
  if #counter == 0 or #counter > COUNTER_BYTES_MAX then
    bad('counter', 'must have 1 to ' .. COUNTER_BYTES_MAX .. ' bytes, not ' .. #counter)
  end
  if count == 0 then bad('count', 'must be at least 1') end
  local before = tonumber(call('HGET', key.counters, counter)) or 0
  if before + count > ALLOTTED_MAX then bad('counter', counter .. ' has no ' .. count .. ' numbers left') end
  call('HINCRBY', key.counters, counter, count)
  return before + 1
end

function change.forget_queues(queues)
  at_least_one('queues', queues)
  in_parts(queues, 'ZREM', key.queues)
  -- Their jobs stay, and must be found.
  in_parts(queues, 'SADD', key.unlisted)
  cache.registered, cache.put_context = {}, nil
end

function change.forget_workers(workers)
  at_least_one('workers', workers)
  for _, worker in ipairs(workers) do
    zset.remove(key.workers, worker)
    cache.seen[worker] = nil
    capabilities.forget(worker)
  end
end

-- Removing everything ---------------------------------------------------------------------------------------

local SCANNED = 1000 -- keys that one SCAN examines

-- Whether a key of ours stays: numbers that are not issued twice, and what living processes have registered.
local function stays(at)
  if at == key.token or at == key.counters or at == key.counts or at == key.fronts or at == key.listen then
    return true
  end
  for _, beginning in ipairs({ key.parked, key.parked_of, key.watch, key.lines }) do
    if at:sub(1, #beginning) == beginning then return true end
  end
  return false
end

-- Detaches up to `count` waiters, whose jobs are about to be removed. Returns how many.
local function dismiss_waiters(count)
  local waiters = zset.read('ZRANGE', key.waiters, 0, count - 1)
  for _, found in ipairs(waiters) do
    local of = job.load(found:sub(49))
    if of and of.waits > 0 then
      put_options.deliver(of, { Ended = { 'Canceled', { 1, NO_BYTES } } })
      put_options.detach_waiters(of)
      put_options.set_waits(of, 0)
    end
    zset.remove(key.waiters, found)
  end
  return #waiters
end

-- Writes what earlier commands of this call have changed, and forgets what they have read.
local function begin_again()
  for at in pairs(pending) do zset.flush(at) end
  if next(cache.order) then order.flush() end
  if next(cache.days) then stats.flush() end
  local was, published = cache, out
  begin(prefix)
  out = published
  out.ready = {} -- there is nothing left to pop
  for _, name in ipairs({ 'request', 'place', 'many', 'calls', 'clock', 'token', 'token_moment', 'new_tokens' }) do
    cache[name] = was[name]
  end
end

-- Dismisses up to `count` clients that wait for jobs, and returns true if there may be more. After the last one
-- it removes the keys of this namespace in one call, as FLUSHDB does: a part of the keys would be a state that
-- no command can leave.
function change.flush(count)
  if count < 1 then bad('count', 'must be at least 1') end
  if dismiss_waiters(count) == count then return true end
  begin_again()
  local ours, theirs = prefix .. 'gt:', prefix .. 'ql:'
  local pattern = prefix:gsub('[%*%?%[%]\\]', '\\%0') .. '*'
  local cursor = '0'
  repeat
    local found = call('SCAN', cursor, 'MATCH', pattern, 'COUNT', SCANNED)
    cursor = found[1]
    local leaving = {}
    for _, at in ipairs(found[2]) do
      local beginning = at:sub(1, #ours)
      if (beginning == ours or beginning == theirs) and not stays(at) then leaving[#leaving + 1] = at end
    end
    for first = 1, #leaving, SCANNED do
      call('UNLINK', unpack(leaving, first, math.min(first + SCANNED - 1, #leaving)))
    end
  until cursor == '0'
  call('HDEL', key.counts, 'results-bytes')
  events.clear()
  return false
end
