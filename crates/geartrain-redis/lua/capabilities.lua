-- Capabilities: what workers announced, what happens to the jobs of a lost worker, and the limits of queues.

local ABILITIES_MAX = 1024
local EVIDENCE_BYTES_MAX = 4096
local PRIORITIES_MAX = 16
local ASKED_SECONDS = 10 -- resolution of the time of a queue's last pop

-- Capabilities: a hash from workers to lists of { queue, klass or false, attempt_max or false }, and for each
-- queue a hash from workers to their capabilities there.

function capabilities.of(worker)
  local stored = call('HGET', key.capabilities, worker)
  return stored and cmsgpack.unpack(stored) or {}
end

-- Whether a worker's announcement counts. A foreign script may have removed the worker.
local function is_known(worker)
  return zset.score(key.workers, worker) ~= nil
end

capabilities.is_known = is_known

local function ability_id(queue, klass)
  return queue .. '\0' .. (klass or '')
end

-- Writes a worker's capabilities, and those of its queues.
function capabilities.write(worker, abilities)
  local queues = {}
  for _, old in ipairs(capabilities.of(worker)) do queues[old[1]] = queues[old[1]] or {} end
  for _, ability in ipairs(abilities) do
    local of = queues[ability[1]] or {}
    queues[ability[1]] = of
    of[#of + 1] = { ability[2], ability[3] }
  end
  for queue, of in pairs(queues) do
    if #of == 0 then call('HDEL', key.can .. queue, worker) else call('HSET', key.can .. queue, worker,
      pack(of)) end
  end
  if #abilities == 0 then call('HDEL', key.capabilities, worker) else call('HSET', key.capabilities, worker,
    pack(abilities)) end
  cache.capabilities = {}
end

-- change: can, only or cannot: lists of { queue, klass or nil, attempt_max or nil }
function capabilities.announce(worker, change)
  local abilities = {}
  local more = change.can or change.only or {}
  if change.cannot then
    at_most('abilities', #change.cannot, ABILITIES_MAX)
    local gone = {}
    for _, less in ipairs(change.cannot) do gone[ability_id(less[1], less[2])] = true end
    for _, old in ipairs(capabilities.of(worker)) do
      if not gone[ability_id(old[1], old[2])] then abilities[#abilities + 1] = old end
    end
  else
    for _, ability in ipairs(more) do check_span('timeout', ability[3]) end
    local all, count = {}, 0
    local function add(ability)
      local id = ability_id(ability[1], ability[2])
      if not all[id] then count = count + 1 end
      all[id] = { ability[1], ability[2] or false, ability[3] or false }
    end
    if change.can then
      for _, old in ipairs(capabilities.of(worker)) do add(old) end
    end
    for _, ability in ipairs(more) do add(ability) end
    at_most('abilities', count, ABILITIES_MAX)
    for _, ability in pairs(all) do abilities[#abilities + 1] = ability end
  end
  -- By queue, and entries for any klass first.
  table.sort(abilities, function(one, other)
    if one[1] ~= other[1] then return one[1] < other[1] end
    return (one[2] or '') < (other[2] or '')
  end)
  finish.seen(worker)
  capabilities.write(worker, abilities)
  for _, ability in ipairs(more) do job.register(ability[1]) end
  if publish.has_event_subscribers() then publish.event('Announced', { worker = worker }) end
end

-- The capabilities of all workers in a queue.
local function in_queue(queue)
  local all = cache.capabilities[queue]
  if not all then
    all = {}
    local flat = call('HGETALL', key.can .. queue)
    for at = 1, #flat, 2 do all[flat[at]] = cmsgpack.unpack(flat[at + 1]) end
    cache.capabilities[queue] = all
  end
  return all
end
capabilities.in_queue = in_queue

-- Whether a worker has announced a capability in a queue.
function capabilities.has_announced(queue, worker)
  return in_queue(queue)[worker] ~= nil
end

-- How many workers have announced this klass; or any, without a klass.
function capabilities.count(queue, klass)
  local count = 0
  for worker, abilities in pairs(in_queue(queue)) do
    for _, ability in ipairs(abilities) do
      if not klass or not ability[1] or ability[1] == klass then
        if is_known(worker) then count = count + 1 end
        break
      end
    end
  end
  return count
end

-- The announced capabilities, by worker.
function capabilities.announced(worker)
  local workers = worker and { worker } or sorted(call('HKEYS', key.capabilities))
  local all = {}
  for _, name in ipairs(workers) do
    local seen, abilities = zset.score(key.workers, name), {}
    for place, ability in ipairs(capabilities.of(name)) do
      abilities[place] = { queue = ability[1], klass = ability[2] or nil, attempt_max = ability[3] or nil }
    end
    if seen and #abilities > 0 then all[#all + 1] = { worker = name, seen = seen, abilities = abilities } end
  end
  return all
end

-- The limit of an attempt: the shorter of the job's and the worker's.
function capabilities.attempt_max(of, worker)
  local max = of.terms and of.terms.attempt_max
  local abilities = in_queue(of.queue)[worker]
  if abilities then
    local for_any, for_klass
    for _, ability in ipairs(abilities) do
      if not ability[1] then for_any = ability end
      if ability[1] == of.klass then for_klass = ability end
    end
    local chosen = for_klass or for_any
    local own = chosen and chosen[2]
    if own and (not max or own < max) then max = own end
  end
  return max
end

-- Removes a worker's capabilities.
function capabilities.forget(worker)
  if call('HEXISTS', key.capabilities, worker) == 1 then capabilities.write(worker, {}) end
end

-- The running jobs that a worker has, also those that it was warned about, in the order in which they were
-- popped.
function capabilities.held_by(worker)
  local found, held = {}, {}
  for _, jid in ipairs(zset.read('ZRANGE', jobs_of(worker), 0, -1)) do found[jid] = true end
  for _, jid in ipairs(call('SMEMBERS', key.warned .. worker)) do
    found[jid] = found[jid] or 'warned'
  end
  for jid, how in pairs(found) do
    local of = job.load(jid)
    if of and of.state == 'running' and of.worker == worker and (how == true or of.grace) then
      held[#held + 1] = of
    end
  end
  table.sort(held, function(one, other)
    local first, second = tonumber(job.token(one)) or 0, tonumber(job.token(other)) or 0
    if first ~= second then return first < second end
    return one.jid < other.jid
  end)
  return held
end

-- Declares a worker lost. Returns its jobs in the order in which they were popped.
function capabilities.worker_lost(worker, evidence)
  check_size('evidence', evidence, EVIDENCE_BYTES_MAX)
  local held = capabilities.held_by(worker)
  local on_list = is_known(worker)
  call('DEL', key.warned .. worker)
  if #held == 0 and not on_list then return {} end
  local jids = {}
  for place, of in ipairs(held) do
    jids[place] = of.jid
    capabilities.crash(of, evidence)
  end
  capabilities.forget(worker)
  zset.remove(key.workers, worker)
  cache.seen[worker] = nil
  if publish.has_event_subscribers() then publish.event('WorkerGone', { worker = worker }) end
  return jids
end

-- Handles one job of a lost worker.
function capabilities.crash(of, evidence)
  job.check_type(of)
  order.check_type(of.queue)
  attempts.add(of, 'WorkerLost', nil, evidence)
  local remaining = finish.spend_retry(of)
  of.terms = of.terms or {}
  local crashes = (of.terms.crashes or 0) + 1
  of.terms.crashes, of.terms.evidence = crashes, evidence
  put_options.write(of)
  -- Without a limit of retries, only the job's own limit of crashes counts.
  local max = of.terms.crashes_max or tonumber(of.retries) ~= RETRIES_MAX and option.count('crashes-max') or 0
  if max > 0 and crashes >= max then
    local message = 'Job was set aside after ' .. crashes .. ' of its workers died' .. (evidence and ': '
      .. evidence or '')
    finish.give_up(of, 'crashed-' .. of.queue, message, 'Crashes')
  elseif remaining < 0 then
    local group, message = finish.exhausted(of)
    finish.give_up(of, group, message, 'Gone')
  else
    finish.to_front(of, true)
  end
end

-- Limits of a queue: { jobs_max, by_priority = { { priority, max }, … }, rate = { count, per, burst } } ---

function capabilities.limits(queue)
  local limits = cache.limits[queue]
  if limits == nil then
    if cache.limited == nil then cache.limited = call('EXISTS', key.limits) == 1 end
    local stored = cache.limited and call('HGET', key.limits, queue)
    limits = stored and cmsgpack.unpack(stored) or false
    cache.limits[queue] = limits
  end
  return limits
end

function capabilities.set_limits(queue, limits)
  local listed = limits.by_priority
  if #listed > PRIORITIES_MAX then bad('limit', 'must be for at most ' .. PRIORITIES_MAX .. ' priorities') end
  table.sort(listed, function(one, other) return one[1] < other[1] end)
  for place = 2, #listed do
    if listed[place][1] == listed[place - 1][1] then
      bad('limit', 'for priority ' .. exact(listed[place][1]) .. ' is given twice')
    end
  end
  local none = limits.jobs_max == 0
  for _, one in ipairs(listed) do none = none or one[2] == 0 end
  if none then bad('limit', 'must let at least one job in') end
  call('HDEL', key.pace, queue)
  if limits.jobs_max or #listed > 0 or limits.rate then
    call('HSET', key.limits, queue, pack(limits))
  else
    call('HDEL', key.limits, queue)
  end
  cache.limits, cache.limited = {}, nil
  out.ready[queue] = (out.ready[queue] or 0) + 1
  if publish.has_event_subscribers() then publish.event('LimitsSet', { queue = queue }) end
end

-- Refuses a new job that exceeds its queue's limits.
function capabilities.check_limits(queue, priority)
  local limits = capabilities.limits(queue)
  if not limits then return end
  local listed, of_priority = limits.by_priority, nil
  for place = #listed, 1, -1 do
    if listed[place][1] <= priority then
      of_priority = listed[place]
      break
    end
  end
  of_priority = of_priority or listed[1]
  local max = limits.jobs_max
  if of_priority and (not max or of_priority[2] < max) then max = of_priority[2] end
  if not max then return end
  local at, jobs = key.queue .. queue, 0
  for _, name in ipairs({ '-work', '-locks', '-scheduled', '-depends' }) do
    jobs = jobs + zset.read('ZCARD', at .. name)
  end
  if jobs >= max then refuse('QueueFull', { queue = queue, jobs = jobs, max = max }) end
end

-- The rate limiter of a queue (GCRA): the theoretical arrival time of the next job.
local function arrival_time(queue, rate)
  local interval, burst = finite(rate[2] / rate[1]), rate[3]
  local at = tonumber(call('HGET', key.pace, queue)) or -finite_max
  if at > finite(now + finite((burst + 1) * interval)) then
    at = now -- the clock went backwards
  elseif at < now then
    at = now
  end
  return at, interval, burst
end

-- How many of the wanted jobs of a queue may start now.
function capabilities.allowed_starts(queue, wanted)
  local limits = capabilities.limits(queue)
  if not limits or not limits.rate then return wanted end
  local at, interval, burst = arrival_time(queue, limits.rate)
  local starts = 0
  while starts < wanted and finite(at - now) <= finite(interval * (burst - 1)) do
    at = finite(at + interval)
    starts = starts + 1
  end
  return starts
end

-- Counts one start of a job in a queue.
function capabilities.count_start(queue)
  local limits = capabilities.limits(queue)
  if not limits or not limits.rate then return end
  local at, interval = arrival_time(queue, limits.rate)
  call('HSET', key.pace, queue, finite(at + interval))
end

-- When the next job of a queue may start, if none may now.
function capabilities.next_start(queue)
  if capabilities.allowed_starts(queue, 1) > 0 then return nil end
  local at, interval, burst = arrival_time(queue, capabilities.limits(queue).rate)
  return finite(at - finite(interval * (burst - 1)))
end

-- Records the time of a queue's last pop, unless it was recorded a moment ago.
function capabilities.record_pop(queue)
  local asked = cache.asked[queue]
  if asked == nil then
    asked = tonumber(call('HGET', key.asked, queue)) or false
  end
  if not asked or math.abs(now - asked) >= ASKED_SECONDS then
    call('HSET', key.asked, queue, now)
    asked = now
  end
  cache.asked[queue] = asked
end
