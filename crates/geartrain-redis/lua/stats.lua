-- Statistics of queues by day, read once and written once per call.

local DAY = 86400
local KINDS = { 'wait', 'run' }

function stats.day(at)
  return finite(at - at % DAY)
end

-- The figures of a queue on a day, to be added to. The first of a day drop old ones.
local function figures(queue, at)
  local last = cache.day
  if last and last.queue == queue and at >= last.start and at < last.start + DAY then return last end
  local start = stats.day(at)
  local text = exact(start)
  local id = text .. ':' .. queue
  local day = cache.days[id]
  if not day then
    local days = key.days .. queue
    if call('ZADD', days, 'NX', start, text) == 1 then
      stats.flush()
      stats.drop_old(queue, days, text)
    end
    day = { queue = queue, start = start, id = id }
    cache.days[id] = day
  end
  cache.day = day
  return day
end

-- Besides a new day, the newest others keep their figures and, if they are newer still, their histograms.
function stats.drop_old(queue, days, new)
  local others = call('ZREVRANGE', days, 0, -1)
  local keep, keep_histograms = option.count('stats-history'), option.count('histogram-history')
  local place = 0
  for _, other in ipairs(others) do
    if other ~= new then
      place = place + 1
      local id = other .. ':' .. queue
      if place > keep then
        call('DEL', key.stats .. 'wait:' .. id, key.stats .. 'run:' .. id, key.stats .. 'stats:' .. id)
        call('ZREM', days, other)
      elseif place > keep_histograms then
        for _, kind in ipairs({ 'wait:', 'run:' }) do
          local at = key.stats .. kind .. id
          local kept = call('HMGET', at, 'total', 'mean', 'vk')
          if kept[1] and call('HLEN', at) > 3 then
            call('DEL', at)
            call('HSET', at, 'total', kept[1], 'mean', kept[2] or '0', 'vk', kept[3] or '0')
          end
        end
      end
    end
  end
end

local named_seconds = {}

-- The histogram bucket of a span.
local function bucket(span)
  local seconds = floor(span)
  if seconds < 60 then
    local name = named_seconds[seconds]
    if not name then
      name = 's' .. exact(seconds)
      if seconds >= 0 then named_seconds[seconds] = name end
    end
    return name
  end
  if seconds < 3600 then return 'm' .. floor(seconds / 60) end
  if seconds < DAY then return 'h' .. floor(seconds / 3600) end
  return 'd' .. exact(floor(seconds / DAY))
end

-- Adds a span as often as it was measured (Welford's algorithm).
local function add(spans)
  local span, total, mean, vk = spans.span, spans.total, spans.mean, spans.vk
  for _ = 1, spans.times do
    total = total + 1
    local off = span - mean
    local new = mean + off / total
    local new_vk = vk + (span - new) * off
    if total == 1 then
      new, new_vk = span, 0
    -- Only finite numbers minus themselves are 0.
    elseif new_vk - new_vk ~= 0 or new - new ~= 0 then
      off = finite(off)
      new = finite(mean + off / total)
      new_vk = finite(vk + finite((span - new) * off))
    end
    mean, vk = new, new_vk
  end
  spans.total, spans.mean, spans.vk, spans.owner = total, mean, vk, nil
  local name = named_seconds[floor(span)] or bucket(span)
  spans.buckets[name] = (spans.buckets[name] or 0) + spans.times
end

-- Measures the span since the time field `time`: kind is `wait` or `run`. Returns the spans of the queue.
-- Most jobs of a batch have the same span as the one before: as long as that is so and `owner`, which stands
-- for a queue and a time, is unchanged, it only counts.
function stats.measure(kind, queue, time, owner)
  local spans = cache[kind]
  if spans then
    add(spans)
    cache[kind] = nil
  end
  local day = figures(queue, now)
  spans = day[kind]
  if not spans then
    local stored = call('HMGET', key.stats .. kind .. ':' .. day.id, 'total', 'mean', 'vk')
    spans = { total = tonumber(stored[1]) or 0, mean = tonumber(stored[2]) or 0, vk = tonumber(stored[3])
      or 0, buckets = {} }
    day[kind] = spans
  end
  spans.owner, spans.time, spans.span, spans.times = owner, time, finite(now - (tonumber(time) or now)), 1
  cache[kind] = spans
  return spans
end

-- Fails if the statistics of a queue cannot be written.
function stats.check_type(queue)
  zset.check_type(key.days .. queue)
  local at = key.stats .. 'stats:' .. exact(stats.day(now)) .. ':' .. queue
  if cache.typed[at] then return end
  call('HLEN', at)
  cache.typed[at] = true
end

-- Adds to the counters `failures`, `failed` or `retries` of a day.
function stats.count(name, queue, at, more)
  local day = figures(queue, at)
  day.counts = day.counts or {}
  day.counts[name] = (day.counts[name] or 0) + more
end

function stats.failed(queue)
  stats.count('failures', queue, now, 1)
  stats.count('failed', queue, now, 1)
end

-- Writes everything that was added.
function stats.flush()
  for _, kind in ipairs(KINDS) do
    if cache[kind] then add(cache[kind]) end
    cache[kind] = nil
  end
  for id, day in pairs(cache.days) do
    for _, kind in ipairs(KINDS) do
      local spans = day[kind]
      if spans then
        local at = key.stats .. kind .. ':' .. id
        call('HSET', at, 'total', spans.total, 'mean', spans.mean, 'vk', spans.vk)
        for name, more in pairs(spans.buckets) do call('HINCRBY', at, name, more) end
      end
    end
    for name, more in pairs(day.counts or {}) do
      if more ~= 0 then call('HINCRBY', key.stats .. 'stats:' .. id, name, more) end
    end
  end
  cache.days, cache.day = {}, nil
end

-- The names of histogram figures, in order.
local function bucket_names()
  local names = {}
  for second = 0, 59 do names[#names + 1] = 's' .. second end
  for minute = 1, 59 do names[#names + 1] = 'm' .. minute end
  for hour = 1, 23 do names[#names + 1] = 'h' .. hour end
  for day = 1, 6 do names[#names + 1] = 'd' .. day end
  return names
end

local function summary(kind, id)
  local at, buckets = key.stats .. kind .. ':' .. id, bucket_names()
  local stored = call('HMGET', at, 'total', 'mean', 'vk')
  local counts = call('HMGET', at, unpack(buckets))
  local total, vk = tonumber(stored[1]) or 0, tonumber(stored[3]) or 0
  local histogram = {}
  for place = 1, #buckets do histogram[place] = tonumber(counts[place]) or 0 end
  local deviation = 0
  if total > 1 then deviation = math.sqrt(vk / (total - 1)) end
  return { count = total, mean = tonumber(stored[2]) or 0, std = deviation, histogram = histogram }
end

-- The statistics of one queue on one day.
function stats.report(queue, date)
  stats.flush()
  local id = exact(stats.day(date)) .. ':' .. queue
  local counts = call('HMGET', key.stats .. 'stats:' .. id, 'retries', 'failed', 'failures')
  return {
    wait = summary('wait', id), run = summary('run', id),
    retries = tonumber(counts[1]) or 0, failed = tonumber(counts[2]) or 0,
    failures = tonumber(counts[3]) or 0,
  }
end
