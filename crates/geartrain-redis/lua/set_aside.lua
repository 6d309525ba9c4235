-- Set aside: jobs that are being moved to another backend wait as failed ones of a group of their own. The
-- message of that failure records what a job was before.
--
-- Nearly all jobs are plain: they wait, no worker has had them, nothing has failed, and they have neither options
-- nor dependents. Consecutive plain ones are read one after the other and then written together, which takes a
-- third of the time that the same jobs take one by one.
--
-- Plain jobs that are set aside together are also noted as a run. If the jobs of a command are such runs and the oldest
-- of the group, and no job has a tag, they are removed without being read.

local GROUP = 'geartrain-transfer'
local BEGINNING = 'set aside to be moved to '
local JOBS_MAX, BYTES_MAX, TARGET_MAX = 1000, 8388608, 512

local function failure_of(at)
  local text = call('HGET', at, 'failure')
  local read, failure = pcall(cjson.decode, text or '')
  if not read or type(failure) ~= 'table' or not failure.group then return nil, text end
  return failure, text
end

-- The record in a failure of the group, or nil; and that failure.
local function parse(text)
  local read, failure = pcall(cjson.decode, text or '')
  if not read or type(failure) ~= 'table' or failure.group ~= GROUP then return nil end
  local to, was = tostring(failure.message):match('^' .. BEGINNING .. '([^ ]*) , was (.*)$')
  if not to then return nil end
  local record = { to = to, was = was }
  local word, length, rest = was:match('^(%a+), failure %[(%d+)%] (.*)$')
  if word then
    record.was, record.group = word, rest:sub(1, tonumber(length))
    record.message = rest:sub(tonumber(length) + 3)
  end
  return record, failure
end

-- The record of a job that is set aside, its failure, and the failure as it is stored.
local function record_of(at, state)
  if state ~= 'failed' then return nil end
  local text = call('HGET', at, 'failure')
  local record, failure = parse(text)
  if not record then return nil end
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
  local shown = native.present_of(of)
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
  local shown = native.present_of(of)
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

-- Whether a job has no dependents, if that was not found for all jobs of the command.
local function is_alone(command, at)
  return command.alone or call('EXISTS', at .. '-dependents') == 0
end

-- What is the same for all plain jobs of a queue in one command: the sorted sets that they may be in.
local function context_of(command, queue)
  local context = { queue = queue, sets = {} }
  local keys = keys_of(queue)
  for _, at in ipairs({ keys.work, keys.locks, keys.scheduled, keys.depends }) do
    if zset.read('ZCARD', at) > 0 then
      context.sets[#context.sets + 1] = at
      if at == keys.scheduled then context.scheduled = at end
    end
  end
  stats.check_type(queue)
  order.check_type(queue)
  cache.ahead[queue] = nil
  command.contexts[queue], command.several = context, next(command.contexts) ~= nil
  return context
end

local QUEUES_MAX = 32

-- Whether no queue has a job that depends on others. A queue that is not registered may have one, which is found when
-- the jobs that it depends on are to be removed.
local function nothing_depends()
  if zset.read('ZCARD', key.queues) > QUEUES_MAX or call('EXISTS', key.unlisted) == 1 then return false end
  for _, queue in ipairs(call('ZRANGE', key.queues, 0, -1)) do
    if zset.read('ZCARD', keys_of(queue).depends) > 0 then return false end
  end
  return true
end

-- A command on some jobs, with the plain ones that are yet to be written: their jids, and their keys and fields.
local function new_command(alone)
  return { contexts = {}, alone = alone, jids = {}, keys = {}, found = {}, seen = {} }
end

local function add_plain(command, jid, at, found)
  local count = #command.jids + 1
  command.jids[count], command.keys[count], command.found[count], command.seen[jid] = jid, at, found, true
end

local function forget_plain(command)
  command.jids, command.keys, command.found = {}, {}, {}
end

-- Calls a function for each run of plain jobs of one queue, with the queue and the first and the last place.
local function each_run(command, queue_at, visit)
  local found, first = command.found, 1
  for place = 2, #found + 1 do
    local queue = found[first][queue_at]
    if not found[place] or found[place][queue_at] ~= queue then
      visit(queue, first, place - 1)
      first = place
    end
  end
end

-- Takes the plain jobs out of the sorted sets of their queues.
local function leave_queues(command)
  local jids, found = command.jids, command.found
  for place, jid in ipairs(jids) do
    local sets = command.contexts[found[place][2]].sets
    for number = 1, #sets do zset.remove(sets[number], jid) end
  end
end

-- Writes the plain jobs that are to be set aside.
local function set_plain(command)
  local jids, found = command.jids, command.found
  if not jids[1] then return end
  leave_queues(command)
  for _, at in ipairs(command.keys) do call('HSET', at, 'state', 'failed', 'failure', command.failure) end
  each_run(command, 2, function(queue, first, last)
    local count = last - first + 1
    stats.count('failed', queue, command.when, count)
    call('LPUSH', key.aside, pack({ count, command.when, queue, jids[first], jids[last] }))
  end)
  in_parts(jids, 'LPUSH', key.group .. GROUP)
  call('SADD', key.failures, GROUP)
  forget_plain(command)
end

-- Whether a job that is to be set aside is plain. The fields are those that `set` reads.
local function is_plain(command, jid, at, found)
  local queue, failure, ended = found[2], found[4], found[7]
  if found[1] ~= 'waiting' or not queue or queue == '' or found[3] ~= '' or (failure and failure ~= '{}')
    or found[5] or found[6] or (ended and ended ~= '') or command.seen[jid] then
    return false
  end
  local context = command.contexts[queue] or context_of(command, queue)
  -- One that was advanced with a delay reads `waiting` too.
  return not (context.scheduled and zset.score(context.scheduled, jid)) and is_alone(command, at)
end

-- Returns the packed jobs, and the others with why they stay.
function set_aside.set(jids, to)
  check_jids(jids)
  call('LLEN', key.aside) -- fails if it has another type
  if #to < 1 or #to > TARGET_MAX or to:find(' ', 1, true) then
    bad('to', 'must have 1 to ' .. TARGET_MAX .. ' bytes and no blanks')
  end
  job.check_group_type(GROUP)
  local jobs, stay, bytes = {}, {}, 0
  local command = new_command(nothing_depends() or finish.have_no_dependents(jids, 1))
  command.when = floor(now)
  command.failure = job.failure_text(GROUP, BEGINNING .. to .. ' , was waiting', command.when, '')
  for _, jid in ipairs(jids) do
    if bytes >= BYTES_MAX then break end
    local at = key.job .. jid
    local found = call('HMGET', at, 'state', 'queue', 'worker', 'failure', 'gt-more', 'scheduled', 'gt-ended',
      'klass', 'data', 'priority', 'retries', 'remaining', 'tags', 'spawned_from_jid')
    if is_plain(command, jid, at, found) then
      local data = found[9] or ''
      bytes = bytes + #data
      jobs[#jobs + 1] = native.packed_waiting(jid, found[2], found[8] or '', data, found[10] or '0',
        found[11] or '0', found[12] or '0', found[13] or '{}', found[14])
      add_plain(command, jid, at, found)
    else
      set_plain(command)
      local shown, reason = set_one(jid, to)
      if shown then
        jobs[#jobs + 1] = pack(shown)
        bytes = bytes + #shown.payload
      else
        stay[#stay + 1] = { jid, reason }
      end
    end
  end
  set_plain(command)
  return jobs, stay
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

-- Whether a list has the same jids from its end on, the last of the list first.
local function ends_with(list, jids)
  local count = #jids
  if #list ~= count then return false end
  for place = 1, count do
    if list[count + 1 - place] ~= jids[place] then return false end
  end
  return true
end

-- Forgets the group if it has no jobs, with the notes of jobs that left it in another way.
local function forget_empty_group()
  if call('EXISTS', key.group .. GROUP) == 1 then return end
  call('SREM', key.failures, GROUP)
  call('DEL', key.aside)
end

-- The runs that some jobs are, the oldest first; nil if they are no runs. Jobs only leave the group between others, so
-- as many jobs with the same first and last one are the same jobs. Notes of other jobs are in the way, and dropped.
local function noted_runs(jids)
  local runs, place = {}, 1
  while place <= #jids do
    local note = call('LINDEX', key.aside, -#runs - 1)
    local run = note and cmsgpack.unpack(note)
    if run and run[4] == jids[place] and run[5] == jids[place + run[1] - 1] then
      runs[#runs + 1] = run
      place = place + run[1]
    elseif run and #runs == 0 then
      call('RPOP', key.aside)
    else
      return nil
    end
  end
  return runs
end

-- Removes jobs that were noted as plain. False if they may not be: then nothing has changed but the notes.
local function remove_noted(command, jids)
  local at = key.group .. GROUP
  if not command.alone or not ends_with(call('LRANGE', at, -#jids, -1), jids)
    or zset.read('ZCARD', key.tags) > 0 then
    return false
  end
  local runs = noted_runs(jids)
  if not runs then return false end
  for _, run in ipairs(runs) do stats.check_type(run[3]) end
  local keys, count = {}, #jids
  for place = 1, count do
    local job_at = key.job .. jids[place]
    keys[2 * place - 1], keys[2 * place] = job_at, job_at .. '-history'
  end
  call('LTRIM', at, 0, -count - 1)
  call('LTRIM', key.aside, 0, -#runs - 1)
  forget_empty_group()
  for _, run in ipairs(runs) do stats.count('failed', run[3], run[2], -run[1]) end
  in_parts(keys, 'UNLINK')
  return true
end

-- Takes plain jobs out of the group. Mostly they are its oldest, which are at the end of the list.
local function leave_group(jids)
  local at = key.group .. GROUP
  local oldest = call('LRANGE', at, -#jids, -1)
  call('LTRIM', at, 0, -#oldest - 1)
  if not ends_with(oldest, jids) then
    local leaving, kept = set_of(jids), {}
    for _, jid in ipairs(oldest) do
      if leaving[jid] then leaving[jid] = 'left' else kept[#kept + 1] = jid end
    end
    in_parts(kept, 'RPUSH', at)
    for _, jid in ipairs(jids) do
      if leaving[jid] ~= 'left' then call('LREM', at, -1, jid) end
    end
  end
  forget_empty_group()
end

-- Writes the plain jobs whose transfer ends.
local function end_plain(command)
  local jids, keys = command.jids, command.keys
  local count = #jids
  if count == 0 then return end
  leave_group(jids)
  each_run(command, 3, function(queue, first, last)
    stats.count('failed', queue, command.when, first - last - 1)
  end)
  if command.removes then
    for place = 1, count do
      if command.found[place][5] ~= '{}' then job.unindex_tags({ at = keys[place], jid = jids[place] }) end
      keys[count + place] = keys[place] .. '-history'
    end
    in_parts(keys, 'UNLINK')
  else
    for place, jid in ipairs(jids) do
      local found, at = command.found[place], keys[place]
      call('HSET', at, 'state', 'waiting', 'failure', '{}')
      if found[5] then call('HDEL', at, 'scheduled') end
      order.enter(found[3], jid, tonumber(found[6]) or 0, tonumber(found[7]) or 0)
    end
  end
  forget_plain(command)
end

-- Whether a job was plain before it was set aside, and can go now. The fields are those that `finish` reads.
local function was_plain(command, jid, at, found)
  local text, queue = found[2], found[3]
  if found[1] ~= 'failed' or not text or not queue or queue == '' or found[4] or command.seen[jid] then
    return false
  end
  -- All plain jobs that were set aside together have the same text.
  if command.text ~= text then
    end_plain(command)
    local record, failure = parse(text)
    command.text, command.when = text, record and record.was == 'waiting' and not record.group
      and tonumber(failure.when)
  end
  if not command.when then return false end
  if not command.contexts[queue] then context_of(command, queue) end
  if not command.removes then return true end
  if found[5] ~= '{}' then job.check_tag_types(job.tags({ at = at })) end
  return is_alone(command, at)
end

function set_aside.finish(jids, how)
  check_jids(jids)
  job.check_group_type(GROUP)
  local ended, stay, command = 0, {}, new_command(finish.have_no_dependents(jids, 1))
  command.removes = how == 'Remove'
  if command.removes and remove_noted(command, jids) then return { ended = #jids, stay = {} } end
  cache.oldest_first = true
  for _, jid in ipairs(jids) do
    local at, found = key.job .. jid, nil
    if command.removes then
      found = call('HMGET', at, 'state', 'failure', 'queue', 'gt-more', 'tags')
    else
      found = call('HMGET', at, 'state', 'failure', 'queue', 'gt-more', 'scheduled', 'priority', 'time')
    end
    if was_plain(command, jid, at, found) then
      add_plain(command, jid, at, found)
      ended = ended + 1
    else
      end_plain(command)
      local reason = end_one(jid, command.removes)
      if reason then stay[#stay + 1] = { jid, reason } else ended = ended + 1 end
    end
  end
  end_plain(command)
  cache.oldest_first = nil
  return { ended = ended, stay = stay }
end
