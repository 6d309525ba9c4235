-- The head of every GearMonkey script: the keys of one function, and what several scripts do.
-- KEYS: scheduled, high, normal, low, leases, inflight, cancel, count, workers, uid, moving, transfers
-- ARGV: 'job:FN:', 'lock:FN:', 'channel:FN', then those of the script
local queues = { scheduled = KEYS[1], high = KEYS[2], normal = KEYS[3], low = KEYS[4] }
local leases, inflight, cancelled, count, workers, uid = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local moving, transfers = KEYS[11], KEYS[12]

local function bad(key, why) return redis.error_reply('BADKEY ' .. key .. '\t' .. why) end
local function kind(key)
  local is = redis.call('TYPE', key)
  return is.ok or is
end

-- A key of another type belongs to something else. Checked before anything is written.
local types = { 'zset', 'list', 'list', 'list', 'zset', 'hash', 'set', 'string', 'zset', 'string', 'hash', 'hash' }
for at, wanted in ipairs(types) do
  local is = kind(KEYS[at])
  if is ~= 'none' and is ~= wanted then return bad(KEYS[at], 'is a ' .. is .. ', not a ' .. wanted) end
end

-- The value of a counter, or the error if it is no integer.
local function counter(key)
  local value = redis.call('GET', key) or '0'
  if not string.match(value, '^%-?%d+$') then return nil, bad(key, 'is no integer: ' .. value) end
  return tonumber(value)
end

local function job_key(id) return ARGV[1] .. id end

-- The token, the queue and the worker of a job that we hold.
local function attempt(id)
  local record = redis.call('HGET', inflight, id)
  if record then return string.match(record, '^(%S+) (%S+) (.*)$') end
end

local function forget(id)
  redis.call('ZREM', leases, id)
  redis.call('HDEL', inflight, id)
  redis.call('SREM', cancelled, id)
end

-- The queue that a job came from, if the caller has its token or, without one, is its worker. Else the reply.
local function held(id, token, worker)
  local has, from, by = attempt(id)
  if not has or (token ~= '' and has ~= token) then return nil, { 'lost' } end
  if token == '' and by ~= worker then return nil, { 'held', by } end
  local is = kind(job_key(id))
  if is == 'hash' then
    local status = redis.call('HGET', job_key(id), 'status')
    if status ~= 'success' and status ~= 'error' then return from end
    forget(id)
    return nil, { 'lost' }
  end
  if is == 'none' then
    forget(id)
    return nil, { 'lost' }
  end
  return nil, bad(job_key(id), 'is a ' .. is .. ', not a hash')
end

local function finish(id, status, output, reason)
  local lock = ARGV[2] .. id
  forget(id)
  redis.call('HSET', job_key(id), 'status', status, 'output', output)
  if reason ~= '' then redis.call('HSET', job_key(id), 'gt:reason', reason) end
  redis.call('EXPIRE', job_key(id), 90000)
  redis.call('PUBLISH', ARGV[3], 'finish:' .. id)
  -- A lock of another type has no waiter that could be woken.
  local is = kind(lock)
  if is == 'none' or is == 'list' then
    redis.call('LPUSH', lock, 'OK')
    redis.call('EXPIRE', lock, 10)
  end
end

-- Queues a job again: where it is taken next, or after a delay.
local function requeue(id, from, now, due)
  forget(id)
  redis.call('HSET', job_key(id), 'status', 'idle')
  if due ~= '' then redis.call('ZADD', queues.scheduled, due, id)
  elseif from == 'scheduled' then redis.call('ZADD', queues.scheduled, now, id)
  else redis.call('RPUSH', queues[from] or queues.normal, id) end
end

-- Queues jobs again whose leases have expired, and takes lost workers off the count. Returns both.
local function recover(now_ms, now, lost_max)
  local expired = redis.call('ZRANGEBYSCORE', leases, '-inf', now_ms, 'LIMIT', 0, 64)
  for _, id in ipairs(expired) do
    local _, from = attempt(id)
    if kind(job_key(id)) == 'hash' and redis.call('HGET', job_key(id), 'status') == 'busy' then
      local lost = (tonumber(redis.call('HGET', job_key(id), 'gt:lost') or '0') or 0) + 1
      if redis.call('SISMEMBER', cancelled, id) == 1 then finish(id, 'error', 'cancelled', 'cancelled')
      else
        redis.call('HSET', job_key(id), 'gt:lost', lost)
        if lost < tonumber(lost_max) then requeue(id, from or 'normal', now, '')
        else finish(id, 'error', 'the workers of ' .. lost .. ' attempts were lost', 'worker-lost') end
      end
    else
      forget(id)
    end
  end
  local gone = redis.call('ZRANGEBYSCORE', workers, '-inf', now_ms)
  for _, worker in ipairs(gone) do
    redis.call('ZREM', workers, worker)
    local registered = counter(count)
    if registered and registered > 0 then redis.call('DECR', count) end
  end
  return expired, gone
end
