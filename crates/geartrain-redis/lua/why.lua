-- Explains why a job is not running.

local HELD_MAX = 5 -- how many running jobs are named when a queue is at its limit

local function failed(of)
  local failure = cjson.decode(job.more(of, 'failure') or '{}')
  local crashes = of.terms and of.terms.crashes or 0
  if crashes > 0 and failure.group == 'crashed-' .. of.queue then
    return { SetAside = { group = failure.group, crashes = crashes, evidence = of.terms.evidence } }
  end
  return { Failed = { group = failure.group or 'unknown', message = failure.message or '' } }
end

local function paused(of, reasons)
  if pop.is_paused(of.queue) then reasons[#reasons + 1] = { Paused = { queue = of.queue } } end
  return reasons
end

local function running(of)
  local lock = zset.score(key.queue .. of.queue .. '-locks', of.jid) or tonumber(of.expires) or 0
  if lock > now then
    return { { Running = { worker = of.worker, ['until'] = lock, warned = (tonumber(of.expires)
      or 0) ~= lock } } }
  end
  local warned = of.grace or option.number('grace-period') <= 0
  return paused(of, { { Stalled = { worker = of.worker, since = lock, remaining = floor(tonumber(of.remaining)
    or 0), warned = warned } } })
end

local function depends(of)
  local on = job.dependencies(of.jid)
  local reasons = {}
  if on[1] then
    local other = job.load(on[1])
    local failed_jid, dependency = policies.first_failed(of.jid), nil
    if failed_jid then
      local group, message = policies.failure_of(failed_jid)
      dependency = { jid = failed_jid, group = group, message = message }
    end
    reasons[1] = { DependsOn = { jid = on[1], state = other and job.state_of(other) or 'Complete',
      count = #on, failed = dependency } }
  end
  local due = tonumber(of.scheduled or nil)
  if due and due > now then reasons[#reasons + 1] = { Scheduled = { at = due } } end
  return paused(of, reasons)
end

-- How many jobs are ahead of one that waits or is due.
local function before(of, due)
  local at = key.queue .. of.queue
  if not due then return zset.read('ZREVRANK', at .. '-work', of.jid) or 0 end
  -- Those of at least its priority, as far as scores tell: its own would be behind all that wait.
  local lowest = order.below(tonumber(of.priority))
  return zset.read('ZCOUNT', at .. '-work', exact(lowest), '+inf') + (zset.read('ZRANK', at .. '-scheduled',
    of.jid) or 0)
end

-- What keeps a ready job from running.
local function obstacles(of, due)
  local queue, reasons = of.queue, {}
  local late = put_options.expired_since(of)
  if late then reasons[1] = { Expired = { at = late } } end
  paused(of, reasons)
  if pop.free_slots(queue) == 0 then
    local held, locks = {}, key.queue .. queue .. '-locks'
    for place, jid in ipairs(zset.read('ZRANGEBYSCORE', locks, exact(now), '+inf', 'LIMIT', 0, HELD_MAX)) do
      held[place] = { jid, call('HGET', key.job .. jid, 'worker') or '' }
    end
    reasons[#reasons + 1] = { Concurrency = { max = floor(option.concurrency(queue)), held = held,
      running = zset.read('ZCOUNT', locks, exact(now), '+inf') } }
  end
  local opens = capabilities.next_start(queue)
  if opens then reasons[#reasons + 1] = { RateLimit = { ['until'] = opens } } end
  local asked = tonumber(call('HGET', key.asked, queue) or nil)
  if not (asked and now - asked <= SILENCE_MAX) and capabilities.count(queue, of.klass) == 0 then
    local others = klasses.announced(queue)
    -- An empty table would be packed as a map.
    reasons[#reasons + 1] = { NoWorker = { klass = of.klass, asked = asked, others = others[1] and others,
      workers = capabilities.count(queue) } }
  end
  local jobs = before(of, due)
  if jobs > 0 then reasons[#reasons + 1] = { Behind = { jobs = jobs } } end
  if #reasons == 0 then reasons[1] = 'Next' end
  return reasons
end

function why.why(jid)
  local of = job.existing(jid)
  local state, reasons = job.state_of(of), nil
  if state == 'Complete' then
    reasons = { { Complete = { at = zset.score(key.completed, jid) or 0 } } }
  elseif state == 'Failed' then
    reasons = { failed(of) }
  elseif state == 'Running' then
    reasons = running(of)
  elseif state == 'Depends' then
    reasons = depends(of)
  else
    local due = state == 'Scheduled' and (zset.score(key.queue .. of.queue .. '-scheduled', jid) or 0) or nil
    if due and due > now then
      reasons = paused(of, { { Scheduled = { at = due } } })
    else
      reasons = obstacles(of, due)
    end
  end
  return { jid = jid, state = state, queue = state ~= 'Complete' and of.queue or nil, reasons = reasons }
end
