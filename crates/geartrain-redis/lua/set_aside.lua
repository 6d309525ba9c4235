-- Set aside: jobs that are being moved to another backend wait as failed ones of a group of their own. The
-- message of that failure records what a job was before.

local GROUP = 'geartrain-transfer'
local BEGINNING = 'set aside to be moved to '
local JOBS_MAX, BYTES_MAX, TARGET_MAX = 1000, 8388608, 512

local function failure_of(at)
  local text = call('HGET', at, 'failure')
  local read, failure = pcall(cjson.decode, text or '')
  if not read or type(failure) ~= 'table' or not failure.group then return nil, text end
  return failure, text
end

-- The record of a job that is set aside, its failure, and the failure as it is stored.
local function record_of(at, state)
  if state ~= 'failed' then return nil end
  local failure, text = failure_of(at)
  if not failure or failure.group ~= GROUP then return nil end
  local to, was = tostring(failure.message):match('^' .. BEGINNING .. '([^ ]*) , was (.*)$')
  if not to then return nil end
  local record = { to = to, was = was }
  local word, length, rest = was:match('^(%a+), failure %[(%d+)%] (.*)$')
  if word then
    record.was, record.group = word, rest:sub(1, tonumber(length))
    record.message = rest:sub(tonumber(length) + 3)
  end
  return record, failure, text
end

-- Whether a job is set aside.
function set_aside.is(jid)
  local at = key.job .. jid
  return record_of(at, call('HGET', at, 'state')) ~= nil
end

-- A job leaves the group in another way than by the end of its transfer.
function set_aside.left(of, group)
  if group == GROUP then call('HDEL', of.at, 'scheduled') end
end

function set_aside.is_group(group)
  return group == GROUP
end

local function enter_group(of, failure, when, group)
  call('HSET', of.at, 'state', 'failed', 'failure', failure, 'worker', '', 'expires', '')
  of.state = 'failed'
  stats.count('failed', of.queue, when, 1)
  if call('LPUSH', key.group .. group, of.jid) == 1 then call('SADD', key.failures, group) end
end

-- A job that was set aside by an earlier command, as it was before.
local function before(of, record, failure)
  local shown = native.job_of(of.jid, of)
  local last = record.group and { group = record.group, message = record.message, when = tonumber(failure.when) or 0,
    worker = failure.worker ~= '' and failure.worker or nil } or nil
  shown.qless.state, shown.past_failure = record.was, last
  local due = tonumber(of.scheduled or nil)
  if record.was == 'failed' then
    shown.state, shown.past_failure = { Failed = { failure = last } }, nil
  elseif record.was == 'scheduled' then
    shown.state = { Scheduled = { due = due } }
  elseif record.was == 'depends' then
    shown.state = { Depends = { on = of.terms and of.terms.upstream or {}, due = due } }
  else
    shown.state = 'Waiting'
  end
  return shown
end

-- Why a job cannot be set aside, or nil.
local function obstacle(of, state)
  if state == 'Running' or state == 'Complete' then return state end
  if state == 'Depends' then
    for _, on in ipairs(job.dependencies(of.jid)) do
      if not set_aside.is(on) then return 'Depends' end
    end
  end
  if of.waits > 0 then return 'Awaited' end
  return nil
end

-- Sets one job aside. Returns the job as it was before, or nil and why it stays.
local function set_one(jid, to)
  local of = job.load(jid, true)
  if not of then return nil, 'Unknown' end
  local record, failure, text = record_of(of.at, of.state)
  if record then
    if record.to ~= to then return nil, 'OtherTarget' end
    return before(of, record, failure)
  end
  local state = job.state_of(of)
  local reason = obstacle(of, state)
  if reason then return nil, reason end
  job.check_type(of)
  local shown = native.job_of(jid, of)
  local last = shown.past_failure
  if state == 'Failed' then
    last, text = failure_of(of.at)
    last = last and shown.state.Failed.failure
  end
  local when, worker = last and last.when or floor(now), last and last.worker or ''
  local message = BEGINNING .. to .. ' , was ' .. state:lower()
  if last then
    message = message .. ', failure [' .. #last.group .. '] ' .. last.group .. ': ' .. last.message
  end
  if state == 'Failed' then job.leave_group(of, text, of.queue) end
  if state == 'Scheduled' then
    call('HSET', of.at, 'scheduled', zset.score(keys_of(of.queue).scheduled, jid) or 0)
  elseif state ~= 'Depends' and of.scheduled then
    -- One that was left behind by earlier dependencies does not count.
    call('HDEL', of.at, 'scheduled')
  end
  put_options.release_key(of)
  put_options.unindex_expiry(of)
  job.detach(of)
  job.clear_warning(of)
  if of.worker ~= '' then zset.remove(jobs_of(of.worker), jid) end
  if (of.ended or ''):find(' deadline', 1, true) then job.forget_ended(of) end
  if state == 'Depends' then
    local on = job.dependencies(jid)
    for _, other in ipairs(on) do job.unlink(jid, other) end
    of.terms = of.terms or {}
    of.terms.upstream = on
    put_options.write(of)
  end
  enter_group(of, job.failure_text(GROUP, message, when, worker), when, GROUP)
  shown.qless = { state = state:lower(), expires = 0 }
  return shown
end

local function check_jids(jids)
  if #jids == 0 then bad('jids', 'must name at least one') end
  at_most('jids', #jids, JOBS_MAX)
end

function set_aside.set(jids, to)
  check_jids(jids)
  if #to < 1 or #to > TARGET_MAX or to:find(' ', 1, true) then
    bad('to', 'must have 1 to ' .. TARGET_MAX .. ' bytes and no blanks')
  end
  local jobs, stay, bytes = {}, {}, 0
  job.check_group_type(GROUP)
  for _, jid in ipairs(jids) do
    if bytes >= BYTES_MAX then break end
    local found, reason = set_one(jid, to)
    if found then
      jobs[#jobs + 1] = found
      bytes = bytes + #found.payload
    else
      stay[#stay + 1] = { jid, reason }
    end
  end
  return { jobs = jobs, stay = stay }
end

-- The jobs that one depends on again: those that it remembers and that are not complete.
local function open_dependencies(of)
  local again = {}
  for _, on in ipairs(of.terms and of.terms.upstream or {}) do
    local state = call('HGET', key.job .. on, 'state')
    if state and state ~= 'complete' and not policies.leads_to(on, of.jid) then again[#again + 1] = on end
  end
  return again
end

-- Puts a job back as it was.
local function put_back(of, record, failure, text)
  local when = tonumber(failure.when) or 0
  job.check_type(of)
  order.check_type(of.queue)
  if record.group then job.check_group_type(record.group) end
  job.leave_group(of, text, of.queue)
  local last = record.group and job.failure_text(record.group, record.message, when, failure.worker or '') or '{}'
  local due = tonumber(of.scheduled or nil)
  call('HDEL', of.at, 'scheduled')
  if record.was == 'failed' then
    enter_group(of, last, when, record.group)
    policies.failed(call('SMEMBERS', of.at .. '-dependents'))
    return
  end
  local again = record.was == 'depends' and open_dependencies(of) or {}
  if record.was == 'depends' and of.terms then
    of.terms.upstream = nil
    put_options.write(of)
  end
  of.state = again[1] and 'depends' or due and 'scheduled' or 'waiting'
  call('HSET', of.at, 'state', of.state, 'failure', last)
  put_options.claim_key(of)
  if again[1] then
    for _, on in ipairs(again) do job.link(of.jid, on) end
    zset.add(keys_of(of.queue).depends, now, of.jid)
    if due then call('HSET', of.at, 'scheduled', due) end
    policies.enter(of)
  elseif due then
    put.schedule(of, due)
  else
    order.enter(of.queue, of.jid, tonumber(of.priority), tonumber(of.time) or 0)
    put_options.index_expiry(of)
  end
end

-- Ends the transfer of one job. Returns why it stays, or nil.
local function end_one(jid, remove)
  local of = job.load(jid)
  if not of then return 'Unknown' end
  local record, failure, text = record_of(of.at, of.state)
  if not record then return 'NotSetAside' end
  if not remove then return put_back(of, record, failure, text) end
  if #job.dependents(jid) > 0 then return 'HasDependents' end
  job.check_type(of)
  job.check_tag_types(job.tags(of))
  job.remove(of)
  call('DEL', of.at .. '-dependents')
  return nil
end

function set_aside.finish(jids, how)
  check_jids(jids)
  local ended, stay = 0, {}
  cache.oldest_first = true
  for _, jid in ipairs(jids) do
    local reason = end_one(jid, how == 'Remove')
    if reason then stay[#stay + 1] = { jid, reason } else ended = ended + 1 end
  end
  cache.oldest_first = nil
  return { ended = ended, stay = stay }
end
