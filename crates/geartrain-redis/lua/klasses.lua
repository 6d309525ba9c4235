-- Pops that are restricted to klasses, by name or by what their worker announced for a queue.
--
-- A queue of which klasses were ever asked has an index: its waiting jobs by klass, with the scores that they
-- have in the queue, and a hash from jids to klasses of all that are in it. Our own calls add to it when a job
-- begins to wait. Everything else is noticed later: an entry is compared with the queue when it is used, and
-- each call of such a pop looks through a part of the queue for jobs that a foreign script put.

local KLASSES_MAX = 1024
local SWEPT = 100       -- waiting jobs that one sweep compares with the index
local SWEEPS_MAX = 20   -- sweeps in search of a job that is not in the index yet
local OTHERS_MAX = 1000 -- due jobs, expired locks and due recurring jobs that are looked at for their klass
local SPARE = 1000      -- stale entries, beyond as many as jobs wait, with which an index is dropped
local CURSOR = ''       -- the field of the next rank to sweep; no jid is empty
local NAMED_MAX = 10    -- klasses that an explanation names

-- The waiting jobs of a klass. The length tells apart names that contain the separator.
local function work_of(queue, klass)
  return key.klass_work .. #queue .. ':' .. queue .. ':' .. klass
end

function klasses.check(named)
  at_least_one('klasses', named)
  at_most('klasses', #named, KLASSES_MAX)
end

-- The klasses that a pop of a queue is restricted to: a list, and a set. Nil if it may have all.
function klasses.of(queue, asked)
  if asked.klasses then
    asked.klass_set = asked.klass_set or set_of(asked.klasses)
    return asked.klasses, asked.klass_set
  end
  local abilities = capabilities.in_queue(queue)[asked.worker]
  if not abilities then return nil end
  local list, set = {}, {}
  for place, ability in ipairs(abilities) do
    if not ability[1] then return nil end
    list[place], set[ability[1]] = ability[1], true
  end
  return list, set
end

-- Records that a pop asks a queue for jobs, unless what its worker announced says that.
function klasses.record_pop(queue, asked)
  if asked.klasses or not klasses.of(queue, asked) then capabilities.record_pop(queue) end
end

-- The first klasses of a queue that workers announced.
function klasses.announced(queue)
  local set, list = {}, {}
  for worker, abilities in pairs(capabilities.in_queue(queue)) do
    for _, ability in ipairs(capabilities.is_known(worker) and abilities or {}) do
      local klass = ability[1]
      if klass and not set[klass] then
        set[klass] = true
        list[#list + 1] = klass
      end
    end
  end
  sorted(list)
  for place = NAMED_MAX + 1, #list do list[place] = nil end
  return list
end

local function forget(queue, klass, jid)
  zset.remove(work_of(queue, klass), jid)
  call('HDEL', key.klass_of .. queue, jid)
end

local function index(queue, jid, klass, score)
  call('HSET', key.klass_of .. queue, jid, klass)
  call('SADD', key.klasses .. queue, klass)
  zset.add(work_of(queue, klass), score, jid)
end

-- Fails if a key of the index has another type.
function klasses.check_type(queue)
  call('HLEN', key.klass_of .. queue)
  for _, klass in ipairs(call('SMEMBERS', key.klasses .. queue)) do zset.check_type(work_of(queue, klass)) end
end

-- Removes the index of a queue. The next restricted pop makes it anew.
local function drop(queue)
  for _, klass in ipairs(call('SMEMBERS', key.klasses .. queue)) do
    zset.flush(work_of(queue, klass))
    call('DEL', work_of(queue, klass))
  end
  call('DEL', key.klasses .. queue, key.klass_of .. queue)
  order.set_indexed(queue, false)
end

-- A job of an indexed queue begins to wait.
function klasses.add(queue, jid, score)
  local klass, old = call('HGET', key.job .. jid, 'klass'), call('HGET', key.klass_of .. queue, jid)
  if old and old ~= klass then zset.remove(work_of(queue, old), jid) end
  if klass then index(queue, jid, klass, score) end
  -- If klasses are not asked any more, nothing removes the entries of popped jobs.
  if not cache.measured[queue] then
    cache.measured[queue] = true
    local waiting = zset.read('ZCARD', keys_of(queue).work)
    if call('HLEN', key.klass_of .. queue) > 2 * waiting + SPARE then drop(queue) end
  end
end

-- Adds the waiting jobs at some ranks that are not in the index, and corrects the order of the first ones.
-- Returns how many jobs there are.
local function sweep(queue, first)
  local found = zset.read('ZREVRANGE', keys_of(queue).work, first, first + SWEPT - 1, 'WITHSCORES')
  local jids = {}
  for at = 1, #found, 2 do jids[#jids + 1] = found[at] end
  if #jids == 0 then return 0 end
  local known = call('HMGET', key.klass_of .. queue, unpack(jids))
  for place, jid in ipairs(jids) do
    local klass, score = known[place], found[2 * place]
    if not klass then
      klass = call('HGET', key.job .. jid, 'klass')
      if klass then index(queue, jid, klass, score) end
    elseif first == 0 then
      -- A foreign script may have raised its priority.
      zset.add(work_of(queue, klass), score, jid)
    end
  end
  return #jids
end

-- Sweeps the next part of the queue. Returns whether that was the last.
local function sweep_on(queue)
  local at = key.klass_of .. queue
  local first = tonumber(call('HGET', at, CURSOR)) or 0
  local is_last = sweep(queue, first) < SWEPT
  call('HSET', at, CURSOR, is_last and 0 or first + SWEPT)
  return is_last
end

-- The first entry of a klass that still is one: its jid and its score.
local function first_of(queue, klass)
  local at, work = work_of(queue, klass), keys_of(queue).work
  while true do
    local entry = zset.read('ZREVRANGE', at, 0, 0, 'WITHSCORES')
    local jid = entry[1]
    if not jid then return nil end
    local score = zset.read('ZSCORE', work, jid)
    if not score then
      forget(queue, klass, jid)
    elseif score ~= entry[2] then
      zset.add(at, score, jid)
    else
      local now_of = call('HGET', key.job .. jid, 'klass')
      if now_of == klass then return jid, tonumber(score) end
      forget(queue, klass, jid)
      if now_of then index(queue, jid, now_of, score) end
    end
  end
end

local function first_in_index(queue, list)
  local best, best_score
  for _, klass in ipairs(list) do
    local jid, score = first_of(queue, klass)
    if jid and (not best or score > best_score) then best, best_score = jid, score end
  end
  return best
end

-- The first waiting job of some klasses.
function klasses.first(queue, list)
  if not cache.swept[queue] then
    cache.swept[queue] = true
    order.set_indexed(queue, true)
    -- What is popped next matters most.
    sweep(queue, 0)
    sweep_on(queue)
  end
  local jid = first_in_index(queue, list)
  local sweeps, is_done = 0, false
  while not jid and not is_done and sweeps < SWEEPS_MAX do
    sweeps = sweeps + 1
    is_done = sweep_on(queue)
    jid = first_in_index(queue, list)
  end
  return jid
end

-- Removes a job that is handed out from the waiting ones.
function klasses.take(queue, jid, klass)
  zset.remove(keys_of(queue).work, jid)
  cache.ahead[queue] = nil
  forget(queue, klass, jid)
end

-- The first `max` members of a sorted set that are due and of some klasses. `beginning` is that of the keys of
-- their hashes.
function klasses.due(at, beginning, set, max)
  local chosen = {}
  if max <= 0 then return chosen end
  for _, jid in ipairs(zset.read('ZRANGEBYSCORE', at, '-inf', exact(now), 'LIMIT', 0, OTHERS_MAX)) do
    local klass = call('HGET', beginning .. jid, 'klass')
    -- Those left behind by a foreign script are removed by the caller.
    if not klass or set[klass] then
      chosen[#chosen + 1] = jid
      if #chosen == max then break end
    end
  end
  return chosen
end

-- The lines in which a pop is parked: one for each queue, and for each set of klasses in a queue.
function klasses.lines(asked)
  local lines = {}
  for place, queue in ipairs(asked.queues) do
    local list = klasses.of(queue, asked)
    if list then
      local group = {}
      for at, klass in ipairs(list) do group[at] = klass end
      lines[place] = parked.line(queue, table.concat(sorted(group), '\0'))
    else
      lines[place] = queue
    end
  end
  return lines
end
