-- Recurring jobs: templates, and the jobs that they create when a worker pops.

local INTERVAL_MIN = 0.001
local RECURRING_BYTES_MAX = 490

local function check_interval(interval)
  if interval < INTERVAL_MIN then bad('interval', 'must be at least ' .. INTERVAL_MIN .. ' s') end
end

local function load(jid)
  local at = key.recurring .. jid
  local found = call('HMGET', at, 'klass', 'data', 'priority', 'tags', 'queue', 'count', 'interval',
    'retries', 'backlog')
  if not found[5] then return nil end
  local tags = found[4]
  return {
    jid = jid, at = at, klass = found[1] or '', data = found[2] or '', priority = tonumber(found[3]) or 0,
    tags_text = tags or '{}', tags = tags and tags ~= '{}' and cjson.decode(tags) or {}, queue = found[5],
    count = tonumber(found[6]) or 0, interval = tonumber(found[7]) or 0, retries = tonumber(found[8]) or 0,
      backlog = tonumber(found[9]) or 0,
  }
end

local function existing(jid)
  local of = load(jid)
  if not of then refuse('NoSuchRecurring', { jid = jid }) end
  return of
end
recur.existing = existing

function recur.get(jid)
  local of = load(jid)
  if of then of.next = zset.score(key.queue .. of.queue .. '-recur', jid) or 0 end
  return of
end

-- asked: queue, jid, klass, data, interval, offset, priority, retries, tags, backlog
function recur.recur(asked)
  check_payload(asked.data)
  check_retries(asked.retries)
  check_interval(asked.interval)
  at_most('tags', #asked.tags, TAGS_MAX)
  if #asked.jid > RECURRING_BYTES_MAX then
    bad('jid', 'of a recurring job must have at most ' .. RECURRING_BYTES_MAX .. ' bytes')
  end
  local jid, queue = asked.jid, asked.queue
  local old = load(jid)
  if old then zset.remove(key.queue .. old.queue .. '-recur', jid) end
  call('HSET', key.recurring .. jid, 'jid', jid, 'klass', asked.klass, 'data', asked.data, 'priority',
    asked.priority, 'tags', list_text(asked.tags), 'state', 'recur', 'queue', queue, 'type', 'interval',
    'count', old and old.count or 0,
    'interval', asked.interval, 'retries', asked.retries, 'backlog', asked.backlog)
  recur.place(queue, jid, finite(now + asked.offset))
  job.register(queue)
end

function recur.place(queue, jid, at)
  zset.add(key.queue .. queue .. '-recur', at, jid)
  local first = cache.recurring[queue]
  if first and at < first then cache.recurring[queue] = at end
  -- Parked pops must learn when it falls due.
  out.ready[queue] = (out.ready[queue] or 0) + 1
end

function recur.unrecur(jid)
  local of = load(jid)
  if not of then return end
  zset.remove(key.queue .. of.queue .. '-recur', jid)
  call('DEL', of.at)
end

-- changes: those of priority, retries, interval, backlog, data, klass and queue that change
function recur.update(jid, changes)
  check_payload(changes.data)
  check_retries(changes.retries)
  if changes.interval then check_interval(changes.interval) end
  local of = existing(jid)
  local at = zset.score(key.queue .. of.queue .. '-recur', jid) or 0
  local fields = {}
  for _, name in ipairs({ 'priority', 'retries', 'interval', 'backlog', 'data', 'klass', 'queue' }) do
    if changes[name] then
      fields[#fields + 1] = name
      fields[#fields + 1] = changes[name]
    end
  end
  if changes.interval then at = finite(at + finite(changes.interval - of.interval)) end
  if changes.queue and changes.queue ~= of.queue then zset.remove(key.queue .. of.queue .. '-recur', jid) end
  if changes.queue then job.register(changes.queue) end
  if changes.queue or changes.interval then recur.place(changes.queue or of.queue, jid, at) end
  if #fields > 0 then call('HSET', of.at, unpack(fields)) end
end

-- A tag that is named twice in one call is added twice, as in Qless.
function recur.tag(jid, tags)
  local of = existing(jid)
  local old, all = set_of(of.tags), {}
  for place, tag in ipairs(of.tags) do all[place] = tag end
  for _, tag in ipairs(tags) do
    if not old[tag] then all[#all + 1] = tag end
  end
  at_most('tags', #all, TAGS_MAX)
  call('HSET', of.at, 'tags', list_text(all))
  return all
end

function recur.untag(jid, tags)
  at_most('tags', #tags, TAGS_MAX)
  local of = existing(jid)
  local gone, left = set_of(tags), {}
  for _, tag in ipairs(of.tags) do
    if not gone[tag] then left[#left + 1] = tag end
  end
  call('HSET', of.at, 'tags', list_text(left))
  return left
end

-- Creates one job.
local function spawn_one(of, moment)
  local jid
  repeat
    of.count = of.count + 1
    jid = of.jid .. '-' .. exact(of.count)
  until call('EXISTS', key.job .. jid) == 0
  job.check_tag_types(of.tags)
  canceled.forget(jid)
  job.begin_history(jid, job.put_entry(of.queue, moment))
  job.index_tags(jid, of.tags)
  call('HSET', key.job .. jid, 'jid', jid, 'klass', of.klass, 'data', of.data, 'priority', of.priority,
    'tags', of.tags_text, 'state', 'waiting', 'worker', '', 'expires', '0', 'queue', of.queue, 'retries',
      of.retries, 'remaining', of.retries,
    'time', string.format('%.20f', moment), 'spawned_from_jid', of.jid)
  order.enter(of.queue, jid, of.priority, moment)
end

-- Creates the due jobs, the oldest first, but no more than wanted; with a set of klasses, only of these.
function recur.spawn(queue, wanted, set)
  local at = keys_of(queue).recur
  if wanted <= 0 or pop.first_of(cache.recurring, queue, at) > now then return end
  cache.recurring[queue] = nil
  order.check_type(queue)
  local due
  if set then
    due = {}
    for _, jid in ipairs(klasses.due(at, key.recurring, set, wanted)) do
      due[#due + 1], due[#due + 2] = jid, zset.score(at, jid)
    end
  else
    due = zset.read('ZRANGEBYSCORE', at, '-inf', exact(now), 'WITHSCORES', 'LIMIT', 0, wanted)
  end
  local left = wanted
  for place = 1, #due, 2 do
    local of, moment = load(due[place]), tonumber(due[place + 1])
    if not of or of.interval <= 0 then
      if not of then zset.remove(at, due[place]) end
    else
      -- Only the first time has a fraction that is dropped. With a fraction in the interval, the job would
      -- recur too often.
      if of.interval % 1 == 0 then moment = floor(moment) end
      if of.backlog > 0 then
        local missed = finite(now - moment) / of.interval
        if missed > of.backlog then
          moment = finite(moment + finite(math.ceil(missed - of.backlog) * of.interval))
          if moment > now then moment = now end
        end
      end
      local made = false
      while moment <= now and left > 0 do
        spawn_one(of, moment)
        left = left - 1
        made = true
        local on = after(moment)
        moment = finite(moment + of.interval)
        if moment < on then moment = on end
      end
      if made then
        call('HSET', of.at, 'count', of.count)
        zset.add(at, moment, of.jid)
      end
    end
  end
end
