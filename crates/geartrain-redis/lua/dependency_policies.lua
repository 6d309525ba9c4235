-- Dependency policies: what a job does when one that it depends on fails. Also the dependents that a
-- cancellation takes along.
--
-- A job with a policy is in an index as long as it depends on others. When our calls fail a job, those of its
-- dependents that have a policy are noted, and at the end of the command the first by jid does what its policy
-- says, then the next. What is too much for one call stays noted for the next ones. What foreign scripts fail
-- is noticed by ticks, which go through the index, a part each time.

local STEPS_MAX = 100 -- steps that one command takes
local SWEPT = 100     -- jobs of the index that one tick looks at
local CASCADE_MAX = 5000
local CYCLE_WALK_MAX = 10000
local NAMES = { Fail = true, Skip = true, Run = true }

-- The policy that a put asks for; nil to wait.
function policies.from(value)
  if value == nil or value == 'Wait' then return nil end
  if not NAMES[value] then
    bad('on_dependency_failure', 'must be Wait, Fail, Skip or Run, not ' .. tostring(value))
  end
  return value
end

local function policy_of(of)
  return of.terms and of.terms.on_dependency_failure
end

-- Whether a job has failed. One that is set aside has not.
function policies.is_failed(jid)
  return call('HGET', key.job .. jid, 'state') == 'failed' and not set_aside.is(jid)
end

-- The first failed dependency of a job by jid.
function policies.first_failed(jid)
  for _, on in ipairs(job.dependencies(jid)) do
    if policies.is_failed(on) then return on end
  end
  return nil
end

-- Group and message of a failed job, and whether it failed because of another.
function policies.failure_of(jid)
  local found = call('HMGET', key.job .. jid, 'failure', 'queue', 'gt-more')
  local read, failure = pcall(cjson.decode, found[1] or '')
  if not read or type(failure) ~= 'table' then failure = {} end
  local group, more = tostring(failure.group or 'unknown'), found[3] and cmsgpack.unpack(found[3])
  local upstream = more and more.upstream and group == 'upstream-' .. (found[2] or '')
  return group, tostring(failure.message or ''), upstream
end

local function note(jid)
  call('ZADD', key.behind, 0, jid)
  cache.behind = true
end

-- Notes a job that has a policy, if it depends on a failed one.
function policies.check(of)
  if policy_of(of) and policies.first_failed(of.jid) then note(of.jid) end
end

-- A job begins to depend on others.
function policies.enter(of)
  if not policy_of(of) then return end
  call('ZADD', key.policies, 0, of.jid)
  policies.check(of)
end

-- A job no longer depends on others.
function policies.leave(of)
  if policy_of(of) then call('ZREM', key.policies, of.jid) end
end

-- Notes the dependents of a job that failed.
function policies.failed(dependents)
  for _, dependent in ipairs(dependents) do
    local more = call('HGET', key.job .. dependent, 'gt-more')
    if more and cmsgpack.unpack(more).on_dependency_failure then note(dependent) end
  end
end

-- Fails a job. It drops its dependencies, because a foreign completion of one would release it, and remembers
-- them for when it is to run again.
local function fail(of, cause)
  local group, message, upstream = policies.failure_of(cause)
  if not upstream then message = 'Job ' .. cause .. ' failed (' .. group .. '), and this job depends on it' end
  local own_group = 'upstream-' .. of.queue
  job.check_type(of)
  job.check_group_type(own_group)
  local on = job.dependencies(of.jid)
  for _, other in ipairs(on) do job.unlink(of.jid, other) end
  policies.leave(of)
  zset.remove(keys_of(of.queue).depends, of.jid)
  of.terms.upstream = on
  put_options.write(of)
  finish.give_up(of, own_group, message, 'Upstream')
  return 1
end

-- Lets a job run when its other dependencies are complete.
local function run(of)
  order.check_type(of.queue)
  for _, on in ipairs(job.dependencies(of.jid)) do
    if policies.is_failed(on) then job.unlink(of.jid, on) end
  end
  if call('EXISTS', of.at .. '-dependencies') == 0 then finish.release(of) end
  return 1
end

-- Cancels a job. Its dependents depend on the failed one instead, up to `max` of them in this call.
local function skip(of, cause, max)
  local moved = 0
  for _, dependent in ipairs(job.dependents(of.jid)) do
    if dependent ~= of.jid then
      if moved == max then return moved, true end
      moved = moved + 1
      job.link(dependent, cause)
      job.unlink(dependent, of.jid)
      policies.failed({ dependent })
    end
  end
  if moved == max then return moved, true end
  finish.cancel({ of.jid }, 'Job ' .. cause .. ' failed, and this job depends on it')
  return moved + 1
end

-- What the first noted job does. Returns how many steps that took.
local function step(jid, max)
  local of = job.load(jid)
  local policy = of and of.state == 'depends' and policy_of(of)
  local cause = policy and policies.first_failed(jid)
  local steps, again = 0, false
  if cause then
    if policy == 'Fail' then
      steps = fail(of, cause)
    elseif policy == 'Run' then
      steps = run(of)
    else
      steps, again = skip(of, cause, max)
    end
  end
  if not again then call('ZREM', key.behind, jid) end
  return steps
end

-- Takes up to `max` steps, or as many as one command may. Returns how many.
function policies.apply(max)
  max = max or STEPS_MAX
  local steps, looked = 0, 0
  while steps < max and looked < max do
    local jid = call('ZRANGE', key.behind, 0, 0)[1]
    if not jid then break end
    looked = looked + 1
    steps = steps + step(jid, max - steps)
  end
  cache.behind = nil
  return steps
end

-- Whether more is noted.
function policies.are_due()
  return call('EXISTS', key.behind) == 1
end

-- Notes jobs of the next part of the index that depend on a job that a foreign script failed, and removes
-- those that no longer depend on any.
function policies.sweep()
  if call('EXISTS', key.policies) == 0 then return end
  local last = call('HGET', key.counts, 'policies-swept') or ''
  local found = call('ZRANGEBYLEX', key.policies, last == '' and '-' or '(' .. last, '+', 'LIMIT', 0, SWEPT)
  for _, jid in ipairs(found) do
    local of = job.load(jid)
    if of and of.state == 'depends' and policy_of(of) then
      policies.check(of)
    else
      call('ZREM', key.policies, jid)
    end
  end
  local next_last = #found == SWEPT and found[SWEPT] or ''
  if next_last ~= last then call('HSET', key.counts, 'policies-swept', next_last) end
end

-- Whether a job depends on another, directly or through others; also if that would take too long to find out.
function policies.leads_to(from, to)
  local seen, count, ahead = {}, 0, { from }
  while #ahead > 0 do
    local at = table.remove(ahead)
    if at == to or count > CYCLE_WALK_MAX then return true end
    if not seen[at] then
      seen[at] = true
      count = count + 1
      for _, on in ipairs(call('SMEMBERS', key.job .. at .. '-dependencies')) do ahead[#ahead + 1] = on end
    end
  end
  return false
end

-- The dropped dependencies of a job in a failure group that are unfinished, so that it depends on them again.
-- It forgets all of them; the caller writes it.
function policies.take_dropped(of, group)
  local dropped = of.terms and of.terms.upstream
  if not dropped then return {} end
  of.terms.upstream = nil
  local again = {}
  -- A foreign script may have put the job back, and another failure have followed.
  if group ~= 'upstream-' .. of.queue and not set_aside.is_group(group) then return again end
  for _, on in ipairs(dropped) do
    local state = call('HGET', key.job .. on, 'state')
    if state and state ~= 'complete' and state ~= 'failed' and not policies.leads_to(on, of.jid) then
      again[#again + 1] = on
    end
  end
  return again
end

-- Whether jobs depend on each other in a cycle: one by one, those without open dependencies are removed.
local function has_cycle(jids, dependents, open)
  local free = {}
  for jid in pairs(set_of(jids)) do
    if not open[jid] then free[#free + 1] = jid end
  end
  while #free > 0 do
    for _, dependent in ipairs(dependents[table.remove(free)]) do
      open[dependent] = open[dependent] - 1
      if open[dependent] == 0 then
        open[dependent] = nil
        free[#free + 1] = dependent
      end
    end
  end
  return next(open) ~= nil
end

-- The jobs and all that depend on them, directly or through others.
function policies.with_dependents(given)
  local jids, seen, place = {}, set_of(given), 1
  local dependents, open = {}, {} -- of each job: its dependents, and how many of its dependencies are among the jobs
  for at, jid in ipairs(given) do jids[at] = jid end
  while jids[place] do
    if #jids > CASCADE_MAX then
      bad('cascade', 'would cancel more than ' .. CASCADE_MAX .. ' jobs; cancel some of those that depend on '
        .. jids[place] .. ' first')
    end
    local jid = jids[place]
    if not dependents[jid] then
      dependents[jid] = job.dependents(jid)
      for _, dependent in ipairs(dependents[jid]) do
        open[dependent] = (open[dependent] or 0) + 1
        if not seen[dependent] then
          seen[dependent] = true
          jids[#jids + 1] = dependent
        end
      end
    end
    place = place + 1
  end
  if has_cycle(jids, dependents, open) then
    bad('cascade', 'would go round a cycle of dependencies; cancel the jobs of the cycle by their jids, without a '
      .. 'cascade')
  end
  return jids
end
