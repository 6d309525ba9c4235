-- The order of waiting jobs: higher priority first, then the earlier time, then first in, first out.
--
-- All of it is in one double. Equal scores are told apart by the smallest step of a double; the last scores
-- given are stored for each queue and for the last times used, under a key of our own.

local MOMENTS_MAX = 16
local TIMED_OUT = 1e308 -- scores above this are of timed-out jobs

-- The stored state of a queue: for each of the last nominal scores the highest and the lowest score given,
-- and whether it is permanent. One flat list, as it is stored: for a call that puts one job, building an
-- index costs more than a scan. Behind it, whether the queue has an index by klass.
local function load_state(queue)
  local stored, work = call('GET', key.order .. queue), keys_of(queue).work
  zset.check_type(work)
  local of = { flat = {}, work = work, came = 0 }
  if stored then of.flat, of.indexed = cmsgpack.unpack(stored) end
  if of.indexed then klasses.check_type(queue) end
  cache.order[queue] = of
  return of
end

-- Fails if a job cannot enter a queue, because one of the keys has another type. Reads only what entering
-- reads anyway.
function order.check_type(queue)
  if not cache.order[queue] then load_state(queue) end
end

-- The index of a nominal score, or nil.
local function index_of(flat, nominal)
  for at = #flat - 3, 1, -4 do
    if flat[at] == nominal then return at end
  end
  return nil
end

-- Caches the entry used last, with the step to its next score and the lowest score that this step may reach:
-- above the highest score below it that other entries have given, there are no collisions.
local function cache_entry(of, at)
  local flat, highest = of.flat, -huge
  local low = flat[at + 2]
  for other = 1, #flat, 4 do
    local high = flat[other + 1]
    if other ~= at and high < low and high > highest then highest = high end
  end
  local _, step, bound = down(low)
  local above = highest + step
  of.nominal, of.low_at, of.step, of.above = flat[at], at + 2, step, above > bound and above or bound
end

-- Times come and go, but the nominal score of a priority change is used again and again, so the last few of
-- those are not evicted.
local function evict_one(flat)
  local at = 1
  while flat[at + 3] and at < MOMENTS_MAX * 2 do at = at + 4 end
  for _ = 1, 4 do table.remove(flat, at) end
end

-- A score just below all that jobs with this nominal score were given.
local function unused(of, nominal, lasts)
  local flat = of.flat
  of.changed = true
  local at = index_of(flat, nominal)
  local score = at and down(flat[at + 2]) or nominal
  local again = true
  while again do
    again = false
    for other = 1, #flat, 4 do
      if other ~= at and flat[other + 2] <= score and score <= flat[other + 1] then
        score = down(flat[other + 2])
        again = true
      end
    end
  end
  if at then
    flat[at + 2] = score
  else
    if #flat >= MOMENTS_MAX * 4 then evict_one(flat) end
    at = #flat + 1
    flat[at], flat[at + 1], flat[at + 2], flat[at + 3] = nominal, score, score, lasts
  end
  cache_entry(of, at)
  return score
end

-- One more job of a queue may start, so one more parked pop is woken.
local function wake_one(queue)
  out.ready[queue] = (out.ready[queue] or 0) + 1
end

-- A job of a queue has stopped running. With a limit of concurrency, another may start.
function order.freed(queue)
  if queue ~= '' and option.concurrency(queue) then wake_one(queue) end
end

-- Whether jobs that begin to wait in a queue are indexed by klass.
function order.is_indexed(queue)
  return (cache.order[queue] or load_state(queue)).indexed
end

function order.set_indexed(queue, indexed)
  local of = cache.order[queue] or load_state(queue)
  if (of.indexed or false) ~= indexed then of.indexed, of.changed = indexed, true end
end

local function into_work(queue, jid, score)
  cache.ahead[queue] = nil
  zset.add(keys_of(queue).work, score, jid)
  if (cache.order[queue] or load_state(queue)).indexed then klasses.add(queue, jid, score) end
  wake_one(queue)
end

-- Inserts a job at its ordering time. Nearly always that is the time of the previous job.
function order.enter(queue, jid, priority, at)
  local of = cache.order[queue] or load_state(queue)
  local nominal, score = priority - at / 1e10, nil
  if of.nominal == nominal then
    local flat, low_at = of.flat, of.low_at
    local low = flat[low_at]
    if low > of.above then
      score = low - of.step
      flat[low_at] = score
    end
  end
  cache.ahead[queue] = nil
  score = score or unused(of, finite(nominal), at == 0)
  zset.add(of.work, score, jid)
  if of.indexed then klasses.add(queue, jid, score) end
  of.came = of.came + 1
end

-- Inserts a job before all others, but behind those inserted this way before.
function order.enter_first(queue, jid)
  local lowest = zset.read('ZRANGEBYSCORE', key.queue .. queue .. '-work', TIMED_OUT, 'inf', 'WITHSCORES',
    'LIMIT', 0, 1)
  into_work(queue, jid, lowest[2] and down(tonumber(lowest[2])) or huge)
end

-- Released jobs start here: a little above all times of their priority.
local FRONT = ldexp(1, -9)
local FRONT_STEP = ldexp(1, -36)

-- Inserts a job at the front of its priority, among released jobs by token.
function order.enter_front(queue, jid, priority, token)
  local work = key.queue .. queue .. '-work'
  local front = key.first .. queue .. ':' .. exact(priority)
  local function is_there(other)
    local score = other and zset.score(work, other)
    if score and score > priority and score <= priority + 2 * FRONT then return score end
    if other then zset.remove(front, other) end
  end
  -- The neighbour that still waits. Entries whose job a foreign script removed are dropped on the way.
  local function neighbour(command, from, to)
    while true do
      local other = zset.read(command, front, from, to, 'LIMIT', 0, 1)[1]
      if not other then return nil end
      local score = is_there(other)
      if score then return score end
    end
  end
  local text = exact(token)
  local before = neighbour('ZREVRANGEBYSCORE', '(' .. text, '-inf')
  local behind = neighbour('ZRANGEBYSCORE', '(' .. text, '+inf')
  local step = FRONT_STEP
  local _, exponent = frexp(priority)
  local coarse = ldexp(1, exponent - 50)
  if coarse > step then step = coarse end
  local score
  if before and behind then
    score = (before + behind) / 2
  elseif before then
    score = before - step
  elseif behind then
    score = behind + step
  else
    score = priority + FRONT
    if score == priority then score = priority + step end
  end
  zset.add(front, token, jid)
  into_work(queue, jid, score)
end

local CLOCKS_DIFFER = 1e6 -- seconds

-- A score below all waiting jobs of a priority, with a margin for clocks that differ.
function order.below(priority)
  return priority - ((now > 0 and now or 0) + CLOCKS_DIFFER) / 1e10
end

-- How many jobs wait with a priority above 0, at 0, and below, as far as scores tell. Timed-out jobs count as
-- above.
function order.by_priority(queue)
  local work = keys_of(queue).work
  local all = zset.read('ZCARD', work)
  local above = call('ZCOUNT', work, '(' .. exact(2 * FRONT), '+inf')
  local below = call('ZCOUNT', work, '-inf', '(' .. exact(order.below(0)))
  return { above = above, at = all - above - below, below = below }
end

-- Writes the order state, and counts the jobs that came in.
function order.flush()
  for queue, of in pairs(cache.order) do
    if of.changed then
      call('SET', key.order .. queue, of.indexed and pack(of.flat, true) or pack(of.flat))
    end
    if of.came > 0 then out.ready[queue] = (out.ready[queue] or 0) + of.came end
  end
end
