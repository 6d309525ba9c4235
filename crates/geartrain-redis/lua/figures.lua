-- Figures of queues for operators, and why the jobs of a queue are not running.

local SAMPLED_EVERY = 60 -- seconds between two samples of completions
local SAMPLE_AGE_MAX = 180 -- seconds for which a rate is computed from a sample
local FAILED_EXAMINED_MAX = 1000 -- failed jobs examined for their queues
local ENDS_EXAMINED = 10 -- jobs at either end of a queue examined for the oldest
local WAITING_EXAMINED_MAX = 1000 -- waiting jobs examined for their klasses
local UNASKED_MAX = 10 -- klasses named that no worker asks for
local DEPENDS_EXAMINED_MAX = 100 -- jobs examined for failed dependencies
local DEPENDENCIES_EXAMINED_MAX = 5 -- dependencies examined of each

-- How many jobs of a queue were completed on a day.
local function completed(queue, at)
  return tonumber(call('HGET', key.stats .. 'run:' .. exact(stats.day(at)) .. ':' .. queue, 'total')) or 0
end

-- Samples the completions of all queues if the last sample is a minute old, or of a time yet to come.
function figures.sample()
  local last = tonumber(call('HGET', key.rates, 'at') or nil)
  if last and now >= last and now - last < SAMPLED_EVERY then return end
  stats.flush()
  if last then call('RENAME', key.rates, key.older_rates) end
  local sample = { 'at', exact(now) }
  for _, queue in ipairs(zset.read('ZRANGE', key.queues, 0, -1)) do
    local count = completed(queue, now)
    if count > 0 then
      sample[#sample + 1] = 'q:' .. queue
      sample[#sample + 1] = count
    end
  end
  in_parts(sample, 'HSET', key.rates)
end

-- The older of the samples that are recent: its key and its time.
local function recent_sample()
  for _, at in ipairs({ key.older_rates, key.rates }) do
    local moment = tonumber(call('HGET', at, 'at') or nil)
    if moment and now > moment and now - moment <= SAMPLE_AGE_MAX then return at, moment end
  end
  return nil
end

-- Completions per minute since a sample.
local function rate(queue, sample, moment)
  local sampled, since = tonumber(call('HGET', sample, 'q:' .. queue) or nil) or 0, completed(queue, moment)
  -- Statistics that were removed meanwhile begin at 0.
  if since >= sampled then since = since - sampled end
  if stats.day(moment) ~= stats.day(now) then since = since + completed(queue, now) end
  return since * 60 / (now - moment)
end

-- Failed jobs by queue, and whether some were not examined. Foreign scripts fail jobs too, so they are counted
-- here and not as they fail.
local function failed_by_queue()
  local counts, left = {}, FAILED_EXAMINED_MAX
  for _, group in ipairs(sorted(call('SMEMBERS', key.failures))) do
    for _, jid in ipairs(call('LRANGE', key.group .. group, 0, left)) do
      if left == 0 then return counts, true end
      left = left - 1
      local queue = call('HGET', key.job .. jid, 'queue')
      if queue then counts[queue] = (counts[queue] or 0) + 1 end
    end
  end
  return counts, false
end

local function oldest_waiting(queue)
  local work, oldest = key.queue .. queue .. '-work', huge
  for _, command in ipairs({ 'ZREVRANGE', 'ZRANGE' }) do
    for _, jid in ipairs(zset.read(command, work, 0, ENDS_EXAMINED - 1)) do
      local time = tonumber(call('HGET', key.job .. jid, 'time') or nil)
      if time and time < oldest then oldest = time end
    end
  end
  return oldest < huge and oldest or nil
end

function figures.figures(queue)
  stats.flush()
  local failed, more = failed_by_queue()
  local sample, moment = recent_sample()
  local all = {}
  for place, name in ipairs(queue and { queue } or zset.read('ZRANGE', key.queues, 0, -1)) do
    all[place] = {
      name = name, failed = failed[name] or 0, failed_or_more = more, oldest = oldest_waiting(name),
      rate = sample and rate(name, sample, moment),
    }
  end
  return all
end

-- The klasses of the first waiting jobs that no live worker asks for, and how many jobs were examined.
local function unasked(queue, asked)
  local jids = zset.read('ZREVRANGE', key.queue .. queue .. '-work', 0, WAITING_EXAMINED_MAX - 1)
  if asked and now - asked <= SILENCE_MAX then return {}, #jids end
  local counts, names = {}, {}
  for _, jid in ipairs(jids) do
    local klass = call('HGET', key.job .. jid, 'klass') or ''
    if not counts[klass] then names[#names + 1] = klass end
    counts[klass] = (counts[klass] or 0) + 1
  end
  table.sort(names, function(one, other)
    if counts[one] ~= counts[other] then return counts[one] > counts[other] end
    return one < other
  end)
  local all = {}
  for _, klass in ipairs(names) do
    if #all < UNASKED_MAX and capabilities.count(queue, klass) == 0 then
      all[#all + 1] = { klass, counts[klass] }
    end
  end
  return all, #jids
end

-- A failed job that this one waits for, among its first dependencies.
local function failed_dependency(jid)
  local on = job.dependencies(jid)
  for place = 1, math.min(#on, DEPENDENCIES_EXAMINED_MAX) do
    if call('HGET', key.job .. on[place], 'state') == 'failed' then return on[place] end
  end
  return nil
end

function figures.why_queue(queue)
  local counts = read.counts(queue)
  local scheduled = zset.read('ZRANGE', key.queue .. queue .. '-scheduled', 0, 0, 'WITHSCORES')
  local asked = tonumber(call('HGET', key.asked, queue) or nil)
  local klasses_unasked, examined = unasked(queue, asked)
  local depends = zset.read('ZRANGE', key.queue .. queue .. '-depends', 0, DEPENDS_EXAMINED_MAX - 1)
  local behind, first = 0, nil
  for _, jid in ipairs(depends) do
    local failed = failed_dependency(jid)
    if failed then
      behind = behind + 1
      first = first or failed
    end
  end
  return {
    counts = counts, next_due = tonumber(scheduled[2]),
    concurrency_max = pop.free_slots(queue) == 0 and floor(option.concurrency(queue)) or nil,
    rate_limited_until = capabilities.next_start(queue), asked = asked,
    workers = capabilities.count(queue), waiting_examined = examined,
    -- An empty table would be packed as a map.
    unasked = klasses_unasked[1] and klasses_unasked,
    depends_examined = #depends, behind_failed = behind, failed_dependency = first,
  }
end
