-- Tombstones: what is left of cancelled jobs for a while. A foreign script may put such a job anew without
-- removing its tombstone, which therefore counts only as long as there is no such job.

local BECAUSE_BYTES_MAX = 1024
local CALLER_BYTES_MAX = 512
local DROPPED_MAX = 100 -- tombstones that one cancelled job drops at most

function canceled.check(because)
  check_size('because', because, BECAUSE_BYTES_MAX)
end

-- Fails if a key has another type.
function canceled.check_type()
  call('HLEN', key.canceled)
  call('ZCARD', key.canceled_ages)
end

local function drop(jid)
  call('HDEL', key.canceled, jid)
  call('ZREM', key.canceled_ages, jid)
end
canceled.drop = drop

-- Leaves a tombstone for a job, which is about to be removed; drops those that are too old or too many.
function canceled.add(of, by, because)
  local age, max = option.number('canceled-history'), option.count('canceled-history-max')
  if age <= 0 or max == 0 or of.queue == '' or of.klass == '' then return end
  call('HSET', key.canceled, of.jid, pack({ queue = of.queue, klass = of.klass, state = job.state_of(of),
    when = now, by = by and attempts.clip(by, CALLER_BYTES_MAX), because = because }))
  call('ZADD', key.canceled_ages, now, of.jid)
  cache.canceled = true
  local oldest = finite(now - age)
  for _ = 1, DROPPED_MAX do
    local found = call('ZRANGE', key.canceled_ages, 0, 0, 'WITHSCORES')
    if not found[1] or (tonumber(found[2]) > oldest and call('ZCARD', key.canceled_ages) <= max) then return end
    drop(found[1])
  end
end

function canceled.get(jid)
  local stored = call('HGET', key.canceled, jid)
  if not stored or job.exists(jid) then return nil end
  local left = cmsgpack.unpack(stored)
  left.jid = jid
  return left
end

-- Whether there are tombstones.
local function has_any()
  if cache.canceled == nil then cache.canceled = call('EXISTS', key.canceled) == 1 end
  return cache.canceled
end

-- A new job removes the tombstone of its jid.
function canceled.forget(jid)
  if has_any() and call('HDEL', key.canceled, jid) == 1 then call('ZREM', key.canceled_ages, jid) end
end

-- The same for many new jobs.
function canceled.forget_all(jids)
  if not has_any() then return end
  in_parts(jids, 'HDEL', key.canceled)
  in_parts(jids, 'ZREM', key.canceled_ages)
end

-- The oldest tombstone, and when it is too old. As with completed jobs, those of another clock stay.
function canceled.first(overdue_max)
  local age = option.number('canceled-history')
  local earliest = finite(finite(now - age) - overdue_max)
  local found = call('ZRANGEBYSCORE', key.canceled_ages, exact(earliest), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if not found[1] then return nil end
  return finite(tonumber(found[2]) + age), found[1]
end
