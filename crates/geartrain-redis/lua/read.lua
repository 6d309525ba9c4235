-- Reading and counting.

local WORKER_AHEAD = 8640000 -- how far ahead the list of a worker's jobs reaches, in seconds

-- The first and last index of a page, or nil if it is empty.
local function places(offset, count)
  if count <= 0 or offset > OFFSET_MAX then return nil end
  return offset, offset + count - 1
end

-- A page of a sorted set: command is ZRANGE or ZREVRANGE.
local function page_of(command, at, offset, count)
  local first, last = places(offset, count)
  if not first then return {} end
  return zset.read(command, at, first, last)
end

-- A page of it between two scores.
local function page_between(at, low, high, offset, count)
  if not places(offset, count) then return {} end
  return zset.read('ZRANGEBYSCORE', at, low, high, 'LIMIT', offset, count)
end

function read.length(queue)
  local at = key.queue .. queue
  return zset.read('ZCARD', at .. '-locks') + zset.read('ZCARD', at .. '-work') + zset.read('ZCARD', at
    .. '-scheduled')
end

-- which: complete, waiting, running, stalled, scheduled, depends or recurring
function read.jobs(which, queue, offset, count)
  if which == 'complete' then return page_of('ZREVRANGE', key.completed, offset, count) end
  local at = key.queue .. queue
  if which == 'waiting' then return page_of('ZREVRANGE', at .. '-work', offset, count) end
  if which == 'running' then return page_between(at .. '-locks', exact(now), '+inf', offset, count) end
  if which == 'stalled' then return page_between(at .. '-locks', '-inf', exact(now), offset, count) end
  if which == 'scheduled' then
    pop.promote(queue)
    return page_of('ZRANGE', at .. '-scheduled', offset, count)
  end
  if which == 'depends' then return page_of('ZRANGE', at .. '-depends', offset, count) end
  if which == 'recurring' then return page_of('ZRANGE', at .. '-recur', offset, count) end
  return nil
end

function read.failures()
  local groups = {}
  for _, group in ipairs(call('SMEMBERS', key.failures)) do
    groups[group] = call('LLEN', key.group .. group)
  end
  return groups
end

function read.failed(group, offset, count)
  local at = key.group .. group
  local first, last = places(offset, count)
  return call('LLEN', at), first and call('LRANGE', at, first, last) or {}
end

function read.tagged(tag, offset, count)
  local at = key.tag .. tag
  return zset.read('ZCARD', at), page_of('ZRANGE', at, offset, count)
end

function read.top_tags(offset, count)
  if not places(offset, count) then return {} end
  return call('ZREVRANGEBYSCORE', key.tags, '+inf', 2, 'LIMIT', offset, count)
end

-- How many jobs of a queue are in each state. Due jobs become waiting.
function read.counts(queue)
  pop.promote(queue)
  local at = key.queue .. queue
  local stalled = zset.read('ZCOUNT', at .. '-locks', '-inf', exact(now))
  return {
    name = queue, waiting = zset.read('ZCARD', at .. '-work'),
    running = call('ZCARD', at .. '-locks') - stalled, stalled = stalled,
    scheduled = zset.read('ZCARD', at .. '-scheduled'), depends = zset.read('ZCARD', at .. '-depends'),
    recurring = zset.read('ZCARD', at .. '-recur'), paused = pop.is_paused(queue),
  }
end

function read.queues(queue)
  local names = queue and { queue } or call('ZRANGE', key.queues, 0, -1)
  local all = {}
  for place, name in ipairs(names) do all[place] = read.counts(name) end
  return all
end

-- Removes workers that have been silent for long, and their lists; their locks stay.
local function forget_old_workers()
  local oldest = finite(now - option.number('max-worker-age'))
  local old = zset.read('ZRANGEBYSCORE', key.workers, '-inf', exact(oldest))
  for _, worker in ipairs(old) do
    zset.flush(jobs_of(worker))
    call('DEL', jobs_of(worker))
    zset.remove(key.workers, worker)
    cache.seen[worker] = nil
    capabilities.forget(worker)
  end
end

function read.workers()
  forget_old_workers()
  local all = {}
  local seen = zset.read('ZREVRANGE', key.workers, 0, -1, 'WITHSCORES')
  for place = 1, #seen, 2 do
    local worker = seen[place]
    local at = jobs_of(worker)
    all[#all + 1] = {
      name = worker, jobs = zset.read('ZCOUNT', at, exact(now), exact(finite(now + WORKER_AHEAD))),
      stalled = call('ZCOUNT', at, '-inf', exact(now)), seen = tonumber(seen[place + 1]),
    }
  end
  return all
end

function read.worker_jobs(worker)
  forget_old_workers()
  local at = jobs_of(worker)
  return {
    jobs = zset.read('ZREVRANGEBYSCORE', at, exact(finite(now + WORKER_AHEAD)), exact(now)),
    stalled = call('ZREVRANGEBYSCORE', at, exact(now), '-inf'),
  }
end

-- History entries as they are stored.
function read.history(jid)
  local at = key.job .. jid .. '-history'
  local entries = call('LRANGE', at, 0, -1)
  if #entries == 0 then
    job.migrate(key.job .. jid)
    entries = call('LRANGE', at, 0, -1)
  end
  return entries
end

-- The tracked jobs that exist, and those that do not, in the order of tracking.
function read.tracked()
  local there, gone = {}, {}
  for _, jid in ipairs(zset.read('ZRANGE', key.tracked, 0, -1)) do
    if job.exists(jid) then there[#there + 1] = jid else gone[#gone + 1] = jid end
  end
  return there, gone
end

-- When the next thing falls due in queues by itself: a lock, a scheduled or recurring job, or the next start
-- that their rate allows.
function read.next_due(queues)
  local earliest = huge
  for _, queue in ipairs(queues) do
    for _, name in ipairs({ '-locks', '-scheduled', '-recur' }) do
      local at = tonumber(zset.read('ZRANGEBYSCORE', key.queue .. queue .. name, exact(now), '+inf',
        'WITHSCORES', 'LIMIT', 0, 1)[2])
      if at and at < earliest then earliest = at end
    end
    local opens = capabilities.next_start(queue)
    if opens and opens < earliest then earliest = opens end
  end
  return earliest < huge and earliest or nil
end
