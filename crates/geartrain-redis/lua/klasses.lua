-- Pops that are restricted to klasses, by name or by what their worker announced for a queue.
--
-- While the first job of a queue is of one of the klasses, it is popped as any other. A queue in which it once was
-- of another has an index: its waiting jobs by klass, with the scores that they have in the queue, and a hash from
-- jids to klasses of all that are in it. Our own calls add to it when a job begins to wait. Everything else is
-- noticed later: an entry is compared with the queue when it is used, and such a pop sweeps a part of the queue for
-- jobs of foreign scripts if the counts differ, the first job is not indexed, or the last sweep was a while ago.

local KLASSES_MAX = 1024
local SWEPT = 100       -- waiting jobs that one sweep compares with the index
local SEARCHED = 500    -- and while the index lacks jobs
local SWEEPS_MAX = 20   -- sweeps in search of a job that is not in the index yet
local SWEEP_SECONDS = 0.1 -- how long a pop goes without a sweep
local AHEAD_MAX = 256   -- entries of a klass that are prefetched
local OTHERS_MAX = 1000 -- due jobs, expired locks and due recurring jobs that are looked at for their klass
local SPARE = 1000      -- stale entries, beyond as many as jobs wait, with which an index is dropped
local CURSOR = ''       -- the field of the next rank to sweep and the time of the last; no jid is empty
local UNKNOWN = ''      -- the klass of entries that a foreign script left without a job; no klass is empty
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

-- Makes sure that a key of the index is a sorted set. One of another type is replaced, because the index can be
-- made anew.
local function typed(at)
  if cache.typed[at] then return at end
  if not pcall(zset.check_type, at) then call('DEL', at) end
  cache.typed[at] = true
  return at
end

-- Removes jids that are no longer in the index from the hash of their klasses.
local function flush_forgotten(queue)
  local jids = cache.forgotten[queue]
  if not jids then return end
  cache.forgotten[queue] = nil
  for first = 1, #jids, ARGUMENTS_MAX do
    call('HDEL', key.klass_of .. queue, unpack(jids, first, math.min(#jids, first + ARGUMENTS_MAX - 1)))
  end
end

function klasses.flush()
  for queue in pairs(cache.forgotten) do flush_forgotten(queue) end
end

-- The hash of klasses, as it is now.
local function klass_hash(queue)
  if cache.forgotten[queue] then flush_forgotten(queue) end
  return key.klass_of .. queue
end

local function forget(queue, klass, jid)
  zset.remove(work_of(queue, klass), jid)
  local jids = cache.forgotten[queue]
  if not jids then
    jids = {}
    cache.forgotten[queue] = jids
  end
  jids[#jids + 1] = jid
end

-- Adds a job to the sorted set of its klass, which is listed once per call.
local function into_klass(queue, jid, klass, score)
  local at = work_of(queue, klass)
  if not cache.named[at] then
    cache.named[at] = true
    call('SADD', key.klasses .. queue, klass)
  end
  zset.add(typed(at), score, jid)
end

-- Fails if a key of the index has another type.
function klasses.check_type(queue)
  call('HLEN', klass_hash(queue))
  call('SCARD', key.klasses .. queue)
end

-- Removes the index of a queue. The next restricted pop makes it anew.
local function drop(queue)
  for _, klass in ipairs(call('SMEMBERS', key.klasses .. queue)) do
    zset.flush(work_of(queue, klass))
    call('DEL', work_of(queue, klass))
  end
  call('DEL', key.klasses .. queue, klass_hash(queue))
  cache.named = {}
  order.set_indexed(queue, false)
end

-- A job of an indexed queue begins to wait.
function klasses.add(queue, jid, score)
  local of_jid = klass_hash(queue)
  local klass = call('HGET', key.job .. jid, 'klass') or UNKNOWN
  if call('HSETNX', of_jid, jid, klass) == 0 then
    local old = call('HGET', of_jid, jid)
    if old ~= klass then
      zset.remove(work_of(queue, old), jid)
      call('HSET', of_jid, jid, klass)
    end
  end
  into_klass(queue, jid, klass, score)
  -- If klasses are not asked any more, nothing removes the entries of popped jobs.
  if not cache.measured[queue] then
    cache.measured[queue] = true
    local waiting = zset.read('ZCARD', keys_of(queue).work)
    if call('HLEN', of_jid) > 2 * waiting + SPARE then drop(queue) end
  end
end

-- Adds up to `count` waiting jobs from a rank on that are not in the index, and corrects the order of the first
-- ones. Returns how many jobs there are.
local function sweep(queue, first, count)
  local found = zset.read('ZREVRANGE', keys_of(queue).work, first, first + count - 1, 'WITHSCORES')
  local jids = {}
  for at = 1, #found, 2 do jids[#jids + 1] = found[at] end
  if #jids == 0 then return 0 end
  local of_jid, missing = klass_hash(queue), {}
  local known = call('HMGET', of_jid, unpack(jids))
  for place, jid in ipairs(jids) do
    local klass, score = known[place], found[2 * place]
    if not klass then
      klass = call('HGET', key.job .. jid, 'klass') or UNKNOWN
      missing[#missing + 1], missing[#missing + 2] = jid, klass
      into_klass(queue, jid, klass, score)
    elseif first == 0 then
      -- A foreign script may have raised its priority.
      zset.add(typed(work_of(queue, klass)), score, jid)
    end
  end
  if missing[1] then call('HSET', of_jid, unpack(missing)) end
  return #jids
end

-- The rank at which the walk through the queue goes on, and when it last moved.
local function read_cursor(queue)
  local stored = call('HGET', klass_hash(queue), CURSOR)
  local rank, moved = (stored or ''):match('^(%d+) (.*)$')
  return tonumber(rank) or 0, tonumber(moved) or -huge
end

-- Walks on by up to `count` jobs. Returns whether those were the last.
local function sweep_on(queue, count)
  local first = read_cursor(queue)
  local is_last = sweep(queue, first, count) < count
  call('HSET', klass_hash(queue), CURSOR, (is_last and 0 or first + count) .. ' ' .. exact(now))
  return is_last
end

-- Whether there are waiting jobs that are certainly not in the index.
local function lacks_jobs(queue)
  -- One field is the cursor.
  return call('HLEN', klass_hash(queue)) - 1 < zset.read('ZCARD', keys_of(queue).work)
end

-- Whether the first waiting job is at its place in the index. That of a foreign script often is not.
local function has_first(queue)
  local first = zset.read('ZREVRANGE', keys_of(queue).work, 0, 0, 'WITHSCORES')
  if not first[1] then return true end
  local klass = call('HGET', klass_hash(queue), first[1])
  return klass and zset.read('ZSCORE', work_of(queue, klass), first[1]) == first[2]
end

-- Compares the index with the queue, once per call: counts and the first job each time, which tells of nearly
-- all that foreign scripts do; the first jobs, and those where the walk is, if these differ or after a while.
local function compare(queue)
  cache.swept[queue] = true
  local _, moved = read_cursor(queue)
  if math.abs(now - moved) < SWEEP_SECONDS and not lacks_jobs(queue) and has_first(queue) then return end
  order.set_indexed(queue, true)
  sweep(queue, 0, SWEPT)
  sweep_on(queue, SWEPT)
end

-- The scores in a queue of prefetched entries: a list, with false for jobs that are not there. Nil from a Redis
-- before 6.2, which has no command for it.
local function scores_of(work, entries)
  if #entries <= 2 then return entries[1] and { call('ZSCORE', work, entries[1]) } end
  local jids = {}
  for at = 1, #entries, 2 do jids[#jids + 1] = entries[at] end
  local scores = redis.pcall('ZMSCORE', work, unpack(jids))
  return not scores.err and scores or nil
end

-- Prefetches entries of a klass, those behind the ones that were taken or removed.
local function prefetch(head, work, count)
  head.count = head.count and head.count * 4 or count
  if head.count > AHEAD_MAX then head.count = AHEAD_MAX end
  head.entries, head.place = zset.read('ZREVRANGE', head.at, 0, head.count - 1, 'WITHSCORES'), 1
  head.scores = scores_of(work, head.entries)
end

-- Finds the first entry of a klass that is still right, and remembers its jid and its score. Of the pending
-- changes of the queue none is of an entry that is not taken yet.
local function find_first(queue, head, count)
  local work = keys_of(queue).work
  while not head.jid do
    if not head.entries or not head.entries[head.place] then
      prefetch(head, work, count)
      if not head.entries[1] then return end
    end
    local place = head.place
    local jid, scores = head.entries[place], head.scores
    local score
    if scores then score = scores[(place + 1) / 2] else score = call('ZSCORE', work, jid) end
    head.place = place + 2
    if not score then
      forget(queue, head.klass, jid)
    elseif score ~= head.entries[place + 1] then
      zset.add(head.at, score, jid)
      head.entries = nil
    else
      head.jid, head.score = jid, tonumber(score)
    end
  end
end

-- The heads of the klasses in a queue's index, until the queue changes otherwise.
local function heads_of(queue, list)
  local heads = cache.ahead[queue]
  if heads and heads.list == list then return heads end
  zset.flush(keys_of(queue).work)
  heads = { list = list }
  for place, klass in ipairs(list) do
    heads[place] = { klass = klass, at = typed(work_of(queue, klass)) }
  end
  cache.ahead[queue] = heads
  return heads
end

-- The head with the first waiting job, or nil.
local function first_head(queue, list)
  local heads = heads_of(queue, list)
  local count = math.ceil((cache.wanted or 1) / #list)
  local best
  for place = 1, #heads do
    local head = heads[place]
    if not head.jid then find_first(queue, head, count) end
    if head.jid and (not best or head.score > best.score) then best = head end
  end
  return best
end

-- Walks through a part of the queue in search of a job of some klasses. The index may lack jobs after it.
local function search(queue, list)
  cache.searched[queue] = true
  local lacks = lacks_jobs(queue)
  for _ = 1, SWEEPS_MAX do
    local is_last = sweep_on(queue, lacks and SEARCHED or SWEPT)
    cache.ahead[queue] = nil
    local head = first_head(queue, list)
    if head or is_last then return head end
  end
  cache.unfinished = cache.unfinished or lacks
  return nil
end

-- The first waiting job of some klasses, and under which of them it was found; its hash may say another.
function klasses.first(queue, list)
  if not cache.swept[queue] then compare(queue) end
  local head = first_head(queue, list)
  if not head and not cache.searched[queue] then head = search(queue, list) end
  if head then return head.jid, head.klass end
end

-- Moves a job that was found under one klass to that of its hash, if it has one.
function klasses.correct(queue, jid, old, klass)
  zset.remove(work_of(queue, old), jid)
  call('HSET', klass_hash(queue), jid, klass or UNKNOWN)
  into_klass(queue, jid, klass or UNKNOWN, zset.read('ZSCORE', keys_of(queue).work, jid))
  cache.ahead[queue] = nil
end

-- A job was taken from the beginning of its queue.
function klasses.took(queue, jid, klass)
  if order.is_indexed(queue) then forget(queue, klass, jid) end
end

-- Removes the first job, which is handed out, from the waiting ones.
function klasses.take(queue, jid, klass)
  zset.remove(keys_of(queue).work, jid)
  forget(queue, klass, jid)
  local heads = cache.ahead[queue]
  for place = 1, heads and #heads or 0 do
    if heads[place].jid == jid then heads[place].jid = nil end
  end
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
