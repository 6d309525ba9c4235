-- The order of waiting jobs: higher priority first, then the earlier moment, then whoever came first.
--
-- All of it is in one double. Those that would be equal are told apart by the smallest step that a double can make, and what was given last is
-- remembered, for each queue and for the moments last met, under a key of our own.

local MOMENTS_MAX = 16
local TIMED_OUT = 1e308 -- scores above this are of jobs that were timed out

-- What is remembered of a queue: the nominal scores last met, and for each the highest and the lowest that was given.
local function memory(queue)
  local of = known.order[queue]
  if of then return of end
  local stored = call('GET', key.order .. queue)
  local flat = stored and cmsgpack.unpack(stored) or {}
  of = { by = {}, list = {} }
  for at = 1, #flat, 4 do
    local entry = { nominal = flat[at], high = flat[at + 1], low = flat[at + 2], lasts = flat[at + 3] }
    of.list[#of.list + 1] = entry
    of.by[entry.nominal] = entry
  end
  known.order[queue] = of
  return of
end

-- The highest score below an entry's own that was given to other moments. As long as its own stay above that, they meet nobody's.
local function clear_of(entry, list)
  local highest = -huge
  for at = 1, #list do
    local other = list[at]
    if other ~= entry and other.high < entry.low and other.high > highest then highest = other.high end
  end
  return highest
end

-- Moments come and go, but the one that a change of priority gives is met again and again, so the last few of those are not forgotten for the others.
local function forget_one(of)
  local list, at = of.list, 1
  while list[at].lasts and at < MOMENTS_MAX / 2 do at = at + 1 end
  of.by[list[at].nominal] = nil
  table.remove(list, at)
end

-- A score that no job which came before and has this nominal score was given, just below theirs.
local function unused(queue, nominal, lasts)
  local of = memory(queue)
  of.changed = true
  local list, entry = of.list, of.by[nominal]
  if entry then
    local score = down(entry.low)
    entry.clear = entry.clear or clear_of(entry, list)
    if score > entry.clear then
      entry.low = score
      return score
    end
  end
  local score = entry and down(entry.low) or nominal
  local again = true
  while again do
    again = false
    for at = 1, #list do
      local other = list[at]
      if other ~= entry and other.low <= score and score <= other.high then
        score = down(other.low)
        again = true
      end
    end
  end
  if entry then
    entry.low, entry.clear = score, nil
    return score
  end
  if #list >= MOMENTS_MAX then forget_one(of) end
  for at = 1, #list do list[at].clear = nil end
  entry = { nominal = nominal, high = score, low = score, lasts = lasts }
  list[#list + 1] = entry
  of.by[nominal] = entry
  return score
end

-- A queue has one more job that waits, so that one more sleeper is woken.
local function stir(queue)
  out.woken[queue] = (out.woken[queue] or 0) + 1
end

-- A job of a queue no longer runs. Where only so many may, another may now.
function order.freed(queue)
  if queue ~= '' and option.concurrency(queue) then stir(queue) end
end

local function into_work(queue, jid, score)
  known.ahead[queue] = nil
  zset.add(keys_of(queue).work, score, jid)
  stir(queue)
end

-- Into work, at an ordering moment.
function order.enter(queue, jid, priority, at)
  into_work(queue, jid, unused(queue, finite(priority - at / 1e10), at == 0))
end

-- Before everything, and behind those that are there already.
function order.enter_first(queue, jid)
  local lowest = zset.ask('ZRANGEBYSCORE', key.queue .. queue .. '-work', TIMED_OUT, 'inf', 'WITHSCORES', 'LIMIT', 0, 1)
  into_work(queue, jid, lowest[2] and down(tonumber(lowest[2])) or huge)
end

-- Where those begin that were given back: a little above all moments of their priority.
local FRONT = ldexp(1, -9)
local FRONT_STEP = ldexp(1, -36)

-- To the front of its priority, among those that came there by token.
function order.enter_front(queue, jid, priority, token)
  local work = key.queue .. queue .. '-work'
  local front = key.first .. queue .. ':' .. exact(priority)
  local function is_there(other)
    local score = other and zset.score(work, other)
    if score and score > priority and score <= priority + 2 * FRONT then return score end
    if other then zset.remove(front, other) end
  end
  -- The neighbours that still wait. What a foreign script took away is forgotten on the way.
  local function neighbour(command, from, to)
    while true do
      local other = zset.ask(command, front, from, to, 'LIMIT', 0, 1)[1]
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

-- Forgets that a job was at the front.
function order.leave_front(queue, jid, priority)
  zset.remove(key.first .. queue .. ':' .. exact(priority), jid)
end

-- Writes down what is remembered.
function order.settle()
  for queue, of in pairs(known.order) do
    if of.changed then
      local flat, n = {}, 0
      for _, entry in ipairs(of.list) do
        flat[n + 1], flat[n + 2], flat[n + 3], flat[n + 4] = entry.nominal, entry.high, entry.low, entry.lasts or false
        n = n + 4
      end
      call('SET', key.order .. queue, pack(flat))
    end
  end
end
