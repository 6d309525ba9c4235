-- What one call knows, and what it has still to write and to tell when it ends.

local unpack, floor, tonumber, tostring, type = unpack, math.floor, tonumber, tostring, type
local pairs, ipairs, next, pcall, error = pairs, ipairs, next, pcall, error
local pack = cmsgpack.pack
local huge = math.huge

local call     -- redis.call; it is not there yet while a function library is loaded
local now      -- the moment of the command under way
local prefix   -- goes before every key and channel
local key = {} -- the beginnings of keys
local known    -- what was read during this call and still holds
local pending  -- changes to sorted sets, by their keys
local out      -- what is to be published, in order

-- The rules, by what they are about. They are declared together because they know each other, and in tables because a chunk may have 200 locals only.
local zset, say, order, option, stats, job, side, put, pop, finish = {}, {}, {}, {}, {}, {}, {}, {}, {}, {}
local change, recur, read, able, tick, why, events, sleep, large, qless, native, batch = {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}

-- Defines the rules of a table when one of them is first asked for: a script is run anew by every call, and needs few of them.
local function lazily(rules, define)
  setmetatable(rules, {
    __index = function(_, name)
      setmetatable(rules, nil)
      define()
      return rules[name]
    end,
  })
end

-- Says no. Nothing has been changed when this is called.
local function refuse(kind, fields)
  error({ refused = kind, fields = fields })
end

local function bad(what, why)
  refuse('BadArgument', { what = what, why = why })
end

-- Beginning a call -----------------------------------------------------------------------------------------------------------------------

local function begin(of_prefix)
  call = redis.call
  if prefix ~= of_prefix then
    prefix = of_prefix
    local ours, theirs = prefix .. 'gt:', prefix .. 'ql:'
    key = {
      job = theirs .. 'j:', recurring = theirs .. 'r:', queue = theirs .. 'q:', worker = theirs .. 'w:',
      tag = theirs .. 't:', group = theirs .. 'f:', stats = theirs .. 's:',
      config = theirs .. 'config', queues = theirs .. 'queues', workers = theirs .. 'workers',
      paused = theirs .. 'paused_queues', tracked = theirs .. 'tracked', completed = theirs .. 'completed',
      failures = theirs .. 'failures', tags = theirs .. 'tags', log = theirs .. 'log', channel = theirs,
      ours = ours, token = ours .. 'token', order = ours .. 'order:', first = ours .. 'first:',
      unique = ours .. 'unique:', waiters = ours .. 'waiters', waiting = ours .. 'waiting:',
      results = ours .. 'results', ages = ours .. 'results:ages', ends = ours .. 'results:ends',
      deadlines = ours .. 'deadlines', expiries = ours .. 'expiries', able = ours .. 'able',
      can = ours .. 'can:', limits = ours .. 'limits', pace = ours .. 'pace', asked = ours .. 'asked',
      days = ours .. 'days:', counts = ours .. 'counts', listen = ours .. 'listen', happened = ours .. 'happened',
      sleep = ours .. 'sleep:', waits = ours .. 'waits:', to = ours .. 'to:', told = ours .. 'front:',
      events = ours .. 'events', warned = ours .. 'warned:', watch = ours .. 'watch:', counters = ours .. 'counters',
      fronts = ours .. 'fronts',
    }
  end
  known = { keys = {}, jobs = {}, packed = {}, packed_numbers = {}, packed_counts = {}, packed_retries = {}, quoted = {}, entries = {}, paused = {}, registered = {}, locks = {}, due = {}, recurring = {}, ahead = {}, order = {},
    days = {}, able = {}, limits = {}, asked = {}, holds = {}, places = {}, seen = {}, watched = {}, empty = {},
    typed = {} }
  pending = {}
  out = { ql = {}, count = 0, events = {}, told = {}, woken = {} }
end

-- The keys of a queue's sorted sets.
local function keys_of(queue)
  local keys = known.keys[queue]
  if not keys then
    local at = key.queue .. queue
    keys = { work = at .. '-work', locks = at .. '-locks', scheduled = at .. '-scheduled', depends = at .. '-depends', recur = at .. '-recur' }
    known.keys[queue] = keys
  end
  return keys
end

-- The key of the list of a worker's jobs.
local function jobs_of(worker)
  local at = known.jobs[worker]
  if not at then
    at = key.worker .. worker .. ':jobs'
    known.jobs[worker] = at
  end
  return at
end

-- The moment at which a command is given; the clock of Redis if its caller does not say.
local function moment(given)
  if given then return given end
  if not known.clock then
    local time = call('TIME')
    known.clock = time[1] + time[2] / 1e6
  end
  return known.clock
end
