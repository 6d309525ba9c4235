-- Periodic jobs: templates beyond Qless, and the jobs of their runs. A process that finds one due computes the
-- runs, because a script knows neither cron expressions nor time zones.
--
-- A template is stored as it was sent: put, period, missed, overlap, expires_in, is_paused in MessagePack, with the
-- bytes as characters up to U+00FF.

local RUNS_MAX = 1000
local RECURRING_BYTES_MAX = 490
local FIELDS = 13 -- of a put
local UNIQUE, EXPIRES = 1, 6 -- among the put options

local function unpacked(template)
  return cmsgpack.unpack((template:gsub('([\194\195])(.)', function(lead, byte)
    return lead == '\194' and byte or string.char(byte:byte() + 64)
  end)))
end

local function load(jid)
  local at = key.periodic .. jid
  local found = call('HMGET', at, 'template', 'count', 'last', 'error')
  if not found[1] then return nil end
  return { jid = jid, at = at, template = found[1], count = tonumber(found[2]) or 0, last = found[3] or nil,
    error = found[4] or nil }
end

-- fields: jid, packed template, next run or nil, whether it must exist. Returns whether it is new.
function periodic.put(jid, template, next_run, must_exist, check)
  if #jid > RECURRING_BYTES_MAX then
    bad('jid', 'of a recurring job must have at most ' .. RECURRING_BYTES_MAX .. ' bytes')
  end
  local of = unpacked(template)
  check(of[1])
  if of[1][2] ~= jid then bad('jid', 'must be that of the template, ' .. tostring(of[1][2])) end
  local old = load(jid)
  if must_exist and not old then refuse('NoSuchRecurring', { jid = jid }) end
  zset.check_type(key.periodics)
  zset.check_type(key.periodic_runs)
  call('HSET', key.periodic .. jid, 'template', template, 'count', old and old.count or 0)
  call('HDEL', key.periodic .. jid, 'error')
  zset.add(key.periodics, 0, jid)
  zset.remove(key.periodic_runs, jid)
  if next_run and not of[6] then zset.add(key.periodic_runs, next_run, jid) end
  return not old
end

function periodic.remove(jid)
  local old = load(jid)
  if not old then return false end
  zset.remove(key.periodics, jid)
  zset.remove(key.periodic_runs, jid)
  call('DEL', old.at)
  return true
end

-- A text or nil, packed.
local function packed(text)
  return text and pack(text) or NIL
end

local function shown(of)
  return '\149' .. pack(of.template) .. packed(zset.score(key.periodic_runs, of.jid)) .. pack(of.count)
    .. packed(of.last) .. (of.error or NIL)
end

-- One periodic job, or a page of them by jid, packed; and when a process last looked for due ones.
function periodic.list(only, after, count)
  local jids = { only }
  if not only then
    jids = zset.read('ZRANGEBYLEX', key.periodics, after and '(' .. after or '-', '+', 'LIMIT', 0, count)
  end
  local list = {}
  for _, jid in ipairs(jids) do
    local of = load(jid)
    if of then list[#list + 1] = shown(of) end
  end
  return '\146' .. packed_array(list) .. packed(tonumber(call('GET', key.periodic_watch) or nil))
end

-- Up to `count` that are due, packed, and when the next one runs.
function periodic.due(count)
  local list, next_run = {}, nil
  local runs = zset.read('ZRANGE', key.periodic_runs, 0, count, 'WITHSCORES')
  if runs[1] or zset.read('ZCARD', key.periodics) > 0 then call('SET', key.periodic_watch, exact(now)) end
  for at = 1, #runs, 2 do
    local run = tonumber(runs[at + 1])
    if run > now or #list == count then
      next_run = run
      break
    end
    local of = load(runs[at])
    if of then list[#list + 1] = '\146' .. pack(of.template) .. pack(run) end
  end
  return '\146' .. packed_array(list) .. packed(next_run)
end

-- The put of a run.
local function put_of_run(template, jid, child, run)
  local fields, options = {}, nil
  for place = 1, FIELDS do fields[place] = template[1][place] end
  fields[2], fields[11] = child, 'Keep'
  options = {}
  for place = 1, FIELDS do options[place] = type(fields[13]) == 'table' and fields[13][place] or nil end
  if template[4] == 'Skip' and not options[UNIQUE] then options[UNIQUE] = jid end
  if template[5] then options[EXPIRES] = finite(run + template[5]) end
  if next(options) ~= nil then fields[13] = options end
  return fields
end

-- Cancels the job of an earlier run. One that other jobs depend on stays.
local function cancel_unfinished(last, jid)
  local state = call('HGET', key.job .. last, 'state')
  if not state or state == 'complete' or state == 'failed' then return end
  native.attempt(finish.cancel, { last }, 'The next run of ' .. jid .. ' has begun')
end

-- Puts the job of one run, unless it is left out or refused. Returns its jid.
local function run_once(of, template, run, put_fields)
  if template[4] == 'CancelOld' and of.last then cancel_unfinished(of.last, of.jid) end
  local count, child = of.count, nil
  repeat
    count = count + 1
    child = of.jid .. '-' .. exact(count)
  until call('EXISTS', key.job .. child) == 0
  local before = now
  now = run
  local done, reply = native.attempt(put_fields, put_of_run(template, of.jid, child, run))
  now = before
  if not done then
    of.error = reply
  elseif reply == 'Created' then
    call('HSET', key.job .. child, 'spawned_from_jid', of.jid)
    of.count, of.last, of.error = count, child, nil
    return child
  end
end

-- Runs a periodic job if its next run is the expected one. Returns whether it was not, and the jobs.
function periodic.fire(jid, expected, runs, next_run, put_fields)
  at_most('runs', #runs, RUNS_MAX)
  local of = load(jid)
  if not of then refuse('NoSuchRecurring', { jid = jid }) end
  if zset.score(key.periodic_runs, jid) ~= expected then return true, {} end
  local template, jobs = unpacked(of.template), {}
  for _, run in ipairs(runs) do jobs[#jobs + 1] = run_once(of, template, run, put_fields) end
  call('HSET', of.at, 'count', of.count)
  if of.last then call('HSET', of.at, 'last', of.last) end
  if of.error then call('HSET', of.at, 'error', of.error) else call('HDEL', of.at, 'error') end
  zset.remove(key.periodic_runs, jid)
  if next_run then zset.add(key.periodic_runs, next_run, jid) end
  return false, jobs
end
