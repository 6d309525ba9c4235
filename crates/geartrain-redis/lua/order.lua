-- The order of waiting jobs: higher priority first, then the earlier moment, then whoever came first.
--
-- All of it is in one double. Those that would be equal are told apart by the smallest step that a double can make, and what was given last is
-- remembered, for each queue and for the moments last met, under a key of our own.

local MOMENTS_MAX = 16
local TIMED_OUT = 1e308 -- scores above this are of jobs that were timed out

-- What is remembered of a queue: the nominal scores last met, and for each the highest and the lowest that was given, and whether it is one that lasts.
-- They are one flat list, as it is stored, because a call that puts one job would take longer to make something better of it than to look through it.
local function memory(queue)
  local stored, work = call('GET', key.order .. queue), keys_of(queue).work
  zset.sure(work)
  local of = { flat = stored and cmsgpack.unpack(stored) or {}, work = work, came = 0 }
  known.order[queue] = of
  return of
end

-- Fails if no job could enter a queue, because one of the keys for that holds a value of another type. It
-- reads what is read anyway when one enters.
function order.sure(queue)
  if not known.order[queue] then memory(queue) end
end

-- Where in the list a nominal score is; none if it is not.
local function place_of(flat, nominal)
  for at = #flat - 3, 1, -4 do
    if flat[at] == nominal then return at end
  end
  return nil
end

-- The entry that was used last is at hand, with the step down to its next score, and how low its own may come that way: as long as they stay above the highest
-- below them that was given to others, they meet nobody's.
local function keep_at_hand(of, at)
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

-- Moments come and go, but the one that a change of priority gives is met again and again, so the last few of those are not forgotten for the others.
local function forget_one(flat)
  local at = 1
  while flat[at + 3] and at < MOMENTS_MAX * 2 do at = at + 4 end
  for _ = 1, 4 do table.remove(flat, at) end
end

-- A score that no job which came before and has this nominal score was given, just below theirs.
local function unused(of, nominal, lasts)
  local flat = of.flat
  of.changed = true
  local at = place_of(flat, nominal)
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
    if #flat >= MOMENTS_MAX * 4 then forget_one(flat) end
    at = #flat + 1
    flat[at], flat[at + 1], flat[at + 2], flat[at + 3] = nominal, score, score, lasts
  end
  keep_at_hand(of, at)
  return score
end

-- A queue has one more job that may start, so that one more sleeper is woken.
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

-- Into work, at an ordering moment. Nearly always the moment is that of the job before.
function order.enter(queue, jid, priority, at)
  local of = known.order[queue] or memory(queue)
  local nominal, score = priority - at / 1e10, nil
  if of.nominal == nominal then
    local flat, low_at = of.flat, of.low_at
    local low = flat[low_at]
    if low > of.above then
      score = low - of.step
      flat[low_at] = score
    end
  end
  known.ahead[queue] = nil
  zset.add(of.work, score or unused(of, finite(nominal), at == 0), jid)
  of.came = of.came + 1
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

local CLOCKS_DIFFER = 1e6 -- seconds

-- Below the scores of all that wait with a priority by now, with room for clocks that differ.
function order.below(priority)
  return priority - ((now > 0 and now or 0) + CLOCKS_DIFFER) / 1e10
end

-- How many jobs wait with a priority above nought, at nought, and below it, as far as scores tell. Those that were timed out are above.
function order.by_priority(queue)
  local work = keys_of(queue).work
  local all = zset.ask('ZCARD', work)
  local above = call('ZCOUNT', work, '(' .. exact(2 * FRONT), '+inf')
  local below = call('ZCOUNT', work, '-inf', '(' .. exact(order.below(0)))
  return { above = above, at = all - above - below, below = below }
end

-- Writes down what is remembered, and that jobs came in.
function order.settle()
  for queue, of in pairs(known.order) do
    if of.changed then call('SET', key.order .. queue, pack(of.flat)) end
    if of.came > 0 then out.woken[queue] = (out.woken[queue] or 0) + of.came end
  end
end
