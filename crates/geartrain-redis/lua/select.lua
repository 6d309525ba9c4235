-- Jobs by filter, and bulk changes of them: a bounded part per command.
--
-- A source is a list of segments, which are walked one after the other: sorted sets by score and member, and
-- the lists of failure groups from the oldest failure on. The cursor names the source, the segment and the
-- last entry that was examined. It is compared by its key and not by its rank, so entries that come and go
-- before it move nothing. The smallest source that has all selected jobs is chosen when a walk begins.

local COUNT_MAX = 1000      -- jobs of a page
local TERMS_MAX = 32
local PATH_MAX = 32
local VALUE_BYTES_MAX = 4096
local STEPS_MAX = 500       -- jobs and segments that one command examines
local ACTED_MAX = 150       -- selected jobs that one command changes: a cancel takes about 0.1 ms
local BYTES_PER_STEP = 2048 -- of payload that is decoded
local CHUNK = 100           -- entries that are read at once
local SEARCHED = 1000       -- entries of a group among which the last examined one is searched
local DEPENDENTS_MAX = 1000 -- jobs that are cancelled along with one that they depend on
local REFUSALS_MAX = 10

-- The sorted sets of a queue, with the state of their jobs.
local PARTS = { { 'depends', 'Depends' }, { 'scheduled', 'Scheduled' }, { 'work', 'Waiting' },
  { 'locks', 'Running' } }

local compare = {
  Below = function(one, other) return one < other end,
  AtMost = function(one, other) return one <= other end,
  Equal = function(one, other) return one == other end,
  AtLeast = function(one, other) return one >= other end,
  Above = function(one, other) return one > other end,
}

-- Filters ---------------------------------------------------------------------------------------------------

local function check_args(path, value)
  local kind, text = native.variant(value)
  if #path > PATH_MAX then bad('filter', 'a path has at most ' .. PATH_MAX .. ' keys, not ' .. #path) end
  local long = #text > VALUE_BYTES_MAX
  for _, name in ipairs(path) do long = long or #name > VALUE_BYTES_MAX end
  if long then bad('filter', 'a key or a value has at most ' .. VALUE_BYTES_MAX .. ' bytes') end
  if kind == 'Bare' and (text == '' or text:find('^"') or text:find('[%s%c]')) then
    bad('filter', 'the value ' .. quote(text) .. ' must be quoted')
  end
end

-- A filter with its terms by field.
local function filter_of(terms)
  if #terms > TERMS_MAX then bad('filter', 'has at most ' .. TERMS_MAX .. ' terms, not ' .. #terms) end
  local filter = { queues = {}, klasses = {}, states = {}, tags = {}, groups = {}, workers = {}, ages = {},
    attempts = {}, args = {} }
  local lists = { Queue = filter.queues, Klass = filter.klasses, State = filter.states, Tag = filter.tags,
    Group = filter.groups, Worker = filter.workers, Age = filter.ages, Attempts = filter.attempts,
    Args = filter.args }
  for _, term in ipairs(terms) do
    local field, value = native.variant(term)
    local list = lists[field]
    if not list then bad('filter', 'there is no field ' .. tostring(field)) end
    if field == 'Args' then check_args(value[1], value[2]) end
    if field == 'Age' and value[1] == 'Equal' then
      bad('filter', 'an age is compared by <, <=, > or >=')
    end
    if field == 'Age' and value[2] < 0 then bad('filter', 'an age is not negative') end
    list[#list + 1] = value
  end
  return filter
end

local function is_whole(text)
  return text:find('^%-?%d+$') and not text:find('^%-?0%d')
end

-- Whether a text is a number as JSON has it.
local function is_number(text)
  if text:find('^%-?0%d') then return false end
  return text:find('^%-?%d+$') or text:find('^%-?%d+%.%d+$') or text:find('^%-?%d+[eE][+-]?%d+$')
    or text:find('^%-?%d+%.%d+[eE][+-]?%d+$')
end

-- Whole numbers that a double may not hold. They are compared as text: JSON's decoder would round them.
local LONG_NUMBER = '%-?' .. string.rep('%d', 16) .. '+'

local function equals(found, kind, text)
  if type(found) == 'string' then return found == text end
  if kind == 'Quoted' or type(found) == 'table' or found == nil then return false end
  if found == cjson.null then return text == 'null' end
  if type(found) == 'boolean' then return tostring(found) == text end
  return is_number(text) and tonumber(text) == found
end

local function matches_value(data, path, value)
  local kind, text = native.variant(value)
  if kind == 'Bare' and is_whole(text) and text:find('^' .. LONG_NUMBER .. '$') then
    if #path == 0 and data:match('^%s*(' .. LONG_NUMBER .. ')%s*$') then
      return data:match('^%s*(.-)%s*$') == text
    end
    -- Quotes long numbers. A string that has such a text in it is no JSON then, and does not match.
    data = data:gsub('([%[,:]%s*)(' .. LONG_NUMBER .. ')%f[%s,%]}]', '%1"%2"')
  end
  local read, found = pcall(cjson.decode, data)
  if not read then return nil end
  for _, name in ipairs(path) do
    if type(found) ~= 'table' then return false end
    local inner = found[name]
    if inner == nil and (name == '0' or name:find('^[1-9]%d*$')) then inner = found[tonumber(name) + 1] end
    found = inner
  end
  return equals(found, kind, text)
end

-- Whether the payload terms are true; nil if the payload is not JSON.
local function matches_payload(filter, data)
  if #filter.args == 0 then return true end
  if not data or (data:sub(1, 11) == '{"$bytes":"' and data:sub(-2) == '"}') then return nil end
  for _, term in ipairs(filter.args) do
    local matches = matches_value(data, term[1], term[2])
    if not matches then return matches end
  end
  return true
end

-- What filters ask of a job ---------------------------------------------------------------------------------

local function count_of(text)
  local count = floor(number_of(text) or 0)
  if count < -1 then return -1 end
  return count < RETRIES_MAX and count or RETRIES_MAX
end

-- When a job was first put: the time of its first history entry.
local function first_put(of)
  if not of.put then
    local entry = call('LINDEX', of.at .. '-history', 0)
    of.put = entry and tonumber(entry:match('^%[%s*([^,%]]+)')) or floor(tonumber(of.time) or 0)
  end
  return of.put
end

-- The queue of a job, or the last one of a complete job, as far as its history says.
local function last_queue(of)
  if of.queue ~= '' then return of.queue end
  if of.last_queue == nil then
    of.last_queue = false
    local entries = call('LRANGE', of.at .. '-history', 0, -1)
    for place = #entries, 1, -1 do
      -- A logged entry has a blank before its text.
      if entries[place]:find('^%[[^,]*,"put",') then
        of.last_queue = cjson.decode(entries[place])[3].q or false
        break
      end
    end
  end
  return of.last_queue or nil
end

-- The failure of a failed job.
local function failure_of(of)
  if of.state ~= 'failed' then return {} end
  if not of.failure then
    local read, failure = pcall(cjson.decode, job.more(of, 'failure') or '')
    of.failure = read and type(failure) == 'table' and failure or {}
  end
  return of.failure
end

local function attempts_of(of)
  local used = math.max(math.max(count_of(of.retries), 0) - count_of(of.remaining), 0)
  local by_worker = failure_of(of).worker
  if of.state == 'running' or (by_worker and by_worker ~= '') then return used + 1 end
  return used
end

local function is_stalled(of)
  if of.state ~= 'running' then return false end
  local expires = zset.score(keys_of(of.queue).locks, of.jid) or tonumber(of.expires) or 0
  return expires <= now
end

-- Whether all of the named values equal this one.
local function all_are(named, value)
  for _, one in ipairs(named) do
    if one ~= value then return false end
  end
  return true
end

-- Whether a filter selects a job; `known` is its state, if the caller knows it. Nil if all but the payload terms
-- are true, and the payload is not JSON.
local function is_selected(filter, of, known, payload_matches)
  if not all_are(filter.klasses, of.klass) then return false end
  if filter.states[1] then
    of.state_name = of.state_name or known or job.state_of(of)
    for _, state in ipairs(filter.states) do
      if state == 'Stalled' then
        if not is_stalled(of) then return false end
      elseif state ~= of.state_name then
        return false
      end
    end
  end
  if filter.queues[1] and not all_are(filter.queues, last_queue(of)) then return false end
  if filter.groups[1] and not all_are(filter.groups, failure_of(of).group) then return false end
  if filter.workers[1] then
    if of.state ~= 'running' or not all_are(filter.workers, of.worker) then return false end
    if not zset.score(jobs_of(of.worker), of.jid) then return false end
  end
  if filter.tags[1] then
    local tags = set_of(job.tags(of))
    for _, tag in ipairs(filter.tags) do
      if not tags[tag] then return false end
    end
  end
  for _, term in ipairs(filter.ages) do
    if not compare[term[1]](now - first_put(of), term[2]) then return false end
  end
  for _, term in ipairs(filter.attempts) do
    if not compare[term[1]](attempts_of(of), term[2]) then return false end
  end
  if payload_matches then return true end
  return matches_payload(filter, of.data)
end

local function shown(of)
  local state = of.state_name or job.state_of(of)
  return {
    jid = of.jid, queue = last_queue(of), klass = of.klass, state = state, stalled = is_stalled(of),
    priority = number_of(of.priority) or 0, put = first_put(of), attempts = attempts_of(of),
    worker = of.state == 'running' and of.worker or nil,
    group = failure_of(of).group,
  }
end

local function by_put(one, other)
  if one.put ~= other.put then return one.put < other.put end
  return one.jid < other.jid
end

-- Sources ---------------------------------------------------------------------------------------------------

-- The state that the terms allow; nil for every state, false for none.
local function state_of_filter(filter)
  local state
  local function allow(one)
    if state ~= nil and state ~= one then state = false else state = one end
  end
  for _, named in ipairs(filter.states) do allow(named == 'Stalled' and 'Running' or named) end
  if filter.groups[1] then allow('Failed') end
  if filter.workers[1] then allow('Running') end
  return state
end

-- The segments by state and queue.
local function segments_by_state(filter)
  local state, segments = state_of_filter(filter), {}
  if state == false then return segments end
  local function add(kind, at, known, ...)
    segments[#segments + 1] = { kind = kind, at = at, known = known, id = { ... } }
  end
  if state ~= 'Complete' and state ~= 'Failed' then
    local queues = filter.queues[1] and { filter.queues[1] }
    if not queues then
      local there = {}
      queues = {}
      for _, list in ipairs({ call('ZRANGE', key.queues, 0, -1), call('SMEMBERS', key.unlisted) }) do
        for _, queue in ipairs(list) do
          if not there[queue] then queues[#queues + 1], there[queue] = queue, true end
        end
      end
      sorted(queues)
    end
    for _, queue in ipairs(queues) do
      for place, part in ipairs(PARTS) do
        if not state or state == part[2] then
          add(part[1] == 'work' and 'down' or 'up', keys_of(queue)[part[1]], part[2], 1, queue, place)
        end
      end
    end
  end
  if not state or state == 'Failed' then
    local groups = filter.groups[1] and { filter.groups[1] } or sorted(call('SMEMBERS', key.failures))
    for _, group in ipairs(groups) do add('list', key.group .. group, 'Failed', 2, group, 0) end
  end
  if not state or state == 'Complete' then add('up', key.completed, 'Complete', 3, '', 0) end
  return segments
end

local function size_of(segments)
  local size = 0
  for _, segment in ipairs(segments) do
    size = size + (segment.kind == 'list' and call('LLEN', segment.at) or zset.read('ZCARD', segment.at))
    if size > OFFSET_MAX then break end
  end
  return size
end

-- The segments of a source: `s` by state and queue, `t` with a tag, `w` of a worker.
local function segments_of(filter, source)
  local kind, name = source:sub(1, 1), source:sub(2)
  if kind == 's' then return segments_by_state(filter) end
  if kind == 't' then return { { kind = 'up', at = key.tag .. name, id = { 1, '', 0 } } } end
  if kind == 'w' then return { { kind = 'up', at = jobs_of(name), id = { 1, '', 0 } } } end
  return nil
end

-- The smallest source. By state and queue it is counted only if it has few segments.
local function choose(filter)
  local best, size = 's', huge
  local by_state = segments_by_state(filter)
  if #by_state <= #PARTS then size = size_of(by_state) end
  local function offer(source)
    local count = size_of(segments_of(filter, source))
    if count < size then best, size = source, count end
  end
  if filter.workers[1] then offer('w' .. filter.workers[1]) end
  for _, tag in ipairs(filter.tags) do offer('t' .. tag) end
  return best
end

-- Whether one segment comes before another.
local function is_before(one, other)
  for place = 1, 3 do
    if one[place] ~= other[place] then return one[place] < other[place] end
  end
  return false
end

-- The order of members with equal scores: by bytes, whatever the locale.
local function is_below(one, other)
  for place = 1, math.min(#one, #other) do
    local left, right = one:byte(place), other:byte(place)
    if left ~= right then return left < right end
  end
  return #one < #other
end

-- The rank behind an entry of a sorted set, which may be gone.
local function rank_after(segment, score, member)
  local at, is_down = segment.at, segment.kind == 'down'
  if zset.read('ZSCORE', at, member) == score then
    return call(is_down and 'ZREVRANK' or 'ZRANK', at, member) + 1
  end
  local first, last
  if is_down then
    first, last = call('ZCOUNT', at, '(' .. score, '+inf'), call('ZCOUNT', at, score, '+inf')
  else
    first, last = call('ZCOUNT', at, '-inf', '(' .. score), call('ZCOUNT', at, '-inf', score)
  end
  while first < last do
    local middle = floor((first + last) / 2)
    local there = call(is_down and 'ZREVRANGE' or 'ZRANGE', at, middle, middle)[1]
    local is_past
    if is_down then is_past = is_below(there, member) else is_past = is_below(member, there) end
    if is_past then last = middle else first = middle + 1 end
  end
  return first
end

-- How many of the oldest entries of a group are behind the walk. The last examined one may have moved towards
-- the end, because older ones were removed; if it is gone, some are examined again.
local function place_after(segment, place, member)
  if place == 0 or call('LINDEX', segment.at, -place) == member then return place end
  local count = math.min(place, SEARCHED)
  local older = call('LRANGE', segment.at, -place, -place + count - 1)
  for offset, jid in ipairs(older) do
    if jid == member then return place - offset + 1 end
  end
  return place - count
end

-- Reads the next entries of a segment: jids, with their scores in a sorted set.
local function read_chunk(segment, place)
  local jids, scores = {}, {}
  if segment.kind == 'list' then
    local found = call('LRANGE', segment.at, -place - CHUNK, -place - 1)
    for at = #found, 1, -1 do jids[#jids + 1] = found[at] end
    return jids, scores
  end
  local found = zset.read(segment.kind == 'down' and 'ZREVRANGE' or 'ZRANGE', segment.at, place,
    place + CHUNK - 1, 'WITHSCORES')
  for at = 1, #found, 2 do jids[#jids + 1], scores[#scores + 1] = found[at], found[at + 1] end
  return jids, scores
end

local function read_cursor(text)
  local read, cursor = pcall(cjson.decode, text)
  if read and type(cursor) == 'table' and type(cursor[1]) == 'string' and type(cursor[2]) == 'number'
    and type(cursor[3]) == 'string' and type(cursor[4]) == 'number' and type(cursor[6] or '') == 'string'
    and (tonumber(cursor[5] or 0)) then
    return cursor
  end
  bad('after', 'this is no cursor of this queue: begin again without one')
end

-- Walks jobs until `count` are selected. Returns them, how many were examined, and where the walk stopped.
local function walk(filter, after, count)
  local cursor = after and read_cursor(after)
  local source = cursor and cursor[1] or choose(filter)
  local segments = segments_of(filter, source)
  if not segments then read_cursor('') end
  local resumed = cursor and { cursor[2], cursor[3], cursor[4] }
  local found, examined, steps = { not_json = 0 }, 0, 0
  for _, segment in ipairs(segments) do
    if not resumed or not is_before(segment.id, resumed) then
      local stop = { source = source, segment = segment, place = 0, examined = {} }
      if resumed and not is_before(resumed, segment.id) and cursor[6] then
        stop.score, stop.member = cursor[5], cursor[6]
        if segment.kind == 'list' then
          stop.place = place_after(segment, tonumber(cursor[5]), cursor[6])
        else
          stop.place = rank_after(segment, cursor[5], cursor[6])
        end
      end
      steps = steps + 1
      repeat
        local jids, scores = read_chunk(segment, stop.place)
        for at, jid in ipairs(jids) do
          if #found >= count or steps >= STEPS_MAX then return found, examined, stop end
          steps, examined = steps + 1, examined + 1
          stop.place, stop.score, stop.member = stop.place + 1, scores[at], jid
          stop.examined[#stop.examined + 1] = jid
          local of = job.load(jid, #filter.args > 0)
          if of and of.data then steps = steps + floor(#of.data / BYTES_PER_STEP) end
          local selected = of and is_selected(filter, of, segment.known)
          if selected then found[#found + 1] = of end
          if of and selected == nil then found.not_json = found.not_json + 1 end
        end
      until #jids < CHUNK
      if steps >= STEPS_MAX then
        stop.ended = true
        return found, examined, stop
      end
    end
  end
  return found, examined, nil
end

-- The cursor of a place where a walk stopped; `gone` are jobs that were removed from the segment since.
local function cursor_of(stop, gone)
  if not stop then return nil end
  local id = stop.segment.id
  local cursor = { stop.source, id[1], id[2], id[3] }
  if stop.segment.kind == 'list' then
    local place, member = stop.place, stop.member
    for at = #stop.examined, 1, -1 do
      local jid = stop.examined[at]
      if gone and gone[jid] then place = place - 1 end
    end
    if gone and member and gone[member] then
      -- The entry that is behind the walk now, whichever it is.
      member = place > 0 and call('LINDEX', stop.segment.at, -place) or nil
    end
    if member then cursor[5], cursor[6] = tostring(place), member end
  elseif stop.member then
    cursor[5], cursor[6] = stop.score, stop.member
  end
  return cjson.encode(cursor)
end

local function check_count(count)
  if count < 1 or count > COUNT_MAX then
    bad('count', 'must be 1 to ' .. COUNT_MAX .. ', not ' .. exact(count))
  end
end

function select.select(terms, after, count)
  local filter = filter_of(terms)
  check_count(count)
  local found, examined, stop = walk(filter, after, count)
  local jobs = {}
  for place, of in ipairs(found) do jobs[place] = shown(of) end
  table.sort(jobs, by_put)
  return { jobs = jobs, next = cursor_of(stop), examined = examined, not_json = found.not_json }
end

-- Bulk changes ----------------------------------------------------------------------------------------------

-- Each takes a job and the fields of the change, and returns how many jobs changed.
local acts = {}

-- A job and all that depend on it, also by way of others. Refused if the filter does not select one of them.
local function with_dependents(of, filter)
  local all, seen, left_behind = {}, { [of.jid] = true }, nil
  local ahead = { of.jid }
  while #ahead > 0 do
    for _, dependent in ipairs(job.dependents(table.remove(ahead))) do
      if not seen[dependent] then
        seen[dependent] = true
        all[#all + 1], ahead[#ahead + 1] = dependent, dependent
        if #all >= DEPENDENTS_MAX then
          refuse('TooManyDependencies', { jid = of.jid, max = DEPENDENTS_MAX })
        end
        local other = job.load(dependent, #filter.args > 0)
        if not (other and is_selected(filter, other)) and not (left_behind and left_behind < dependent) then
          left_behind = dependent
        end
      end
    end
  end
  if left_behind then refuse('IsDependency', { jid = of.jid, dependent = left_behind }) end
  sorted(all)
  table.insert(all, 1, of.jid)
  return all
end

function acts.Cancel(of, fields, filter, gone)
  if of.state == 'complete' then return 0 end
  local jids = with_dependents(of, filter)
  local count = finish.cancel(jids, fields[1], false, cache.calls[cache.place][3])
  for _, jid in ipairs(jids) do gone[jid] = true end
  return count
end

local function target_of(of, given)
  local queue = given or last_queue(of)
  if not queue then bad('queue', 'the last queue of job ' .. of.jid .. ' is not known any more: name one') end
  return queue
end

function acts.Requeue(of, fields, _, gone)
  local queue, state = target_of(of, fields[1]), job.state_of(of)
  if (state == 'Waiting' or state == 'Depends') and of.queue == queue then return 0 end
  put.put({ queue = queue, jid = of.jid, klass = of.klass, data = of.data or job.more(of, 'data'), delay = 0,
    depends = {}, existing = 'Require' })
  gone[of.jid] = true
  return 1
end

function acts.Unfail(of, fields, _, gone)
  if of.state ~= 'failed' then return 0 end
  local queue, group = target_of(of, fields[1]), failure_of(of).group
  order.check_type(queue)
  job.check_type(of)
  if group then
    job.check_group_type(group)
    call('LREM', key.group .. group, -1, of.jid)
    if call('EXISTS', key.group .. group) == 0 then call('SREM', key.failures, group) end
  end
  finish.revive(of, queue, group)
  gone[of.jid] = true
  return 1
end

function acts.SetPriority(of, fields)
  if tonumber(of.priority) == fields[1] then return 0 end
  change.priority(of.jid, fields[1])
  return 1
end

-- Those tags, each once, that a job has or has not.
local function those(of, tags, has)
  local there, taken, list = set_of(job.tags(of)), {}, {}
  for _, tag in ipairs(tags) do
    if (there[tag] or false) == has and not taken[tag] then list[#list + 1], taken[tag] = tag, true end
  end
  return list
end

function acts.AddTags(of, fields)
  local new = those(of, fields[1], false)
  if #new == 0 then return 0 end
  change.add_tags(of.jid, new)
  return 1
end

function acts.RemoveTags(of, fields)
  local old = those(of, fields[1], true)
  if #old == 0 then return 0 end
  change.remove_tags(of.jid, old)
  return 1
end

-- Named jobs, whose payloads are known to match.
local function those_named(filter, jids)
  local found, seen, examined = {}, {}, 0
  for _, jid in ipairs(jids) do
    local of = not seen[jid] and job.load(jid)
    seen[jid] = true
    if of then
      examined = examined + 1
      if is_selected(filter, of, nil, true) then found[#found + 1] = of end
    end
  end
  return found, examined, nil
end

function select.act(terms, after, count, act, only)
  local name, fields = native.variant(act)
  if not acts[name] then bad('act', 'there is no ' .. tostring(name)) end
  fields = fields or {}
  if name == 'Cancel' then canceled.check(fields[1]) end
  local filter = filter_of(terms)
  check_count(count)
  at_most('only', #only, COUNT_MAX)
  if name == 'AddTags' or name == 'RemoveTags' then
    at_least_one('tags', fields[1])
    at_most('tags', #fields[1], TAGS_MAX)
  end
  local found, examined, stop
  if #only > 0 then
    found, examined, stop = those_named(filter, only)
  else
    found, examined, stop = walk(filter, after, math.min(count, ACTED_MAX))
  end
  local reply = { acted = 0, unchanged = 0, refused = 0, refusals = {}, examined = examined, again = {} }
  for _, of in ipairs(found) do first_put(of) end
  table.sort(found, by_put)
  local gone, along = {}, 0
  -- A walk goes from the oldest failure on, so it is found soonest from that end.
  cache.oldest_first = true
  for _, of in ipairs(found) do
    if gone[of.jid] and name == 'Cancel' then
      -- It was cancelled along with another.
    elseif along > DEPENDENTS_MAX then
      reply.again[#reply.again + 1] = of.jid
    else
      local done, changed = pcall(acts[name], of, fields, filter, gone)
      if not done and not (type(changed) == 'table' and changed.refused) then error(changed) end
      if not done then
        reply.refused = reply.refused + 1
        if #reply.refusals < REFUSALS_MAX then
          reply.refusals[#reply.refusals + 1] = { of.jid, { [changed.refused] = changed.fields } }
        end
      elseif changed == 0 then
        reply.unchanged = reply.unchanged + 1
      else
        reply.acted, along = reply.acted + changed, along + changed - 1
      end
    end
  end
  cache.oldest_first = nil
  reply.next = cursor_of(stop, gone)
  return reply
end
