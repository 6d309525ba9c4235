-- The state of one call: its cache, and what it still has to write and publish when it ends.

local unpack, floor, tonumber, tostring, type = unpack, math.floor, tonumber, tostring, type
local pairs, ipairs, next, pcall, error = pairs, ipairs, next, pcall, error
local pack = cmsgpack.pack
local huge = math.huge

local call     -- redis.call, which does not exist while a function library is loading
local now      -- the time of the current command
local prefix   -- of every key and channel
local key = {} -- beginnings of keys
local cache    -- what was read during this call and is still valid
local pending  -- unwritten changes to sorted sets, by key
local out      -- what to publish, in order

-- The slices. They are declared together because they call each other, and are tables because a Lua function
-- may have 200 locals only.
local zset, publish, order, option, stats, job = {}, {}, {}, {}, {}, {}
local put_options, put, pop, finish, change, recur = {}, {}, {}, {}, {}, {}
local read, capabilities, tick, why, events, parked = {}, {}, {}, {}, {}, {}
local int64, qless, native, batch, klasses, policies = {}, {}, {}, {}, {}, {}
local attempts, canceled, select, figures, periodic, set_aside = {}, {}, {}, {}, {}, {}

-- Defines the functions of a slice on first use: a script is run anew by every call, and needs few of them.
local function lazily(slice, define)
  setmetatable(slice, {
    __index = function(_, name)
      setmetatable(slice, nil)
      define()
      return slice[name]
    end,
  })
end

-- Refuses a command. Nothing has been changed when this is called.
local function refuse(kind, fields)
  error({ refused = kind, fields = fields })
end

local function bad(what, why)
  refuse('BadArgument', { what = what, why = why })
end

-- Beginning a call ------------------------------------------------------------------------------------------

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
      deadlines = ours .. 'deadlines', expiries = ours .. 'expiries', capabilities = ours .. 'able',
      can = ours .. 'can:', limits = ours .. 'limits', pace = ours .. 'pace', asked = ours .. 'asked',
      days = ours .. 'days:', counts = ours .. 'counts', listen = ours .. 'listen',
      event_log = ours .. 'happened', parked = ours .. 'sleep:', parked_of = ours .. 'waits:',
      to = ours .. 'to:', deliveries = ours .. 'front:', woken = ours .. 'woken:', ended = ours .. 'ended:',
      events = ours .. 'events', warned = ours .. 'warned:', watch = ours .. 'watch:',
      counters = ours .. 'counters', fronts = ours .. 'fronts', klasses = ours .. 'klasses:',
      klass_of = ours .. 'klass:', klass_work = ours .. 'work:', lines = ours .. 'lines:',
      policies = ours .. 'policies', behind = ours .. 'behind',
      canceled = ours .. 'canceled', canceled_ages = ours .. 'canceled:ages',
      unlisted = ours .. 'unlisted', periodic = ours .. 'periodic:', periodics = ours .. 'periodics',
      periodic_runs = ours .. 'periodic-runs', periodic_watch = ours .. 'periodic-watch',
      rates = ours .. 'rates', older_rates = ours .. 'rates:older', aside = ours .. 'aside',
    }
  end
  cache = { keys = {}, jobs = {}, packed = {}, packed_numbers = {}, packed_counts = {}, packed_retries = {},
    quoted = {}, entries = {}, paused = {}, registered = {}, locks = {}, due = {}, recurring = {}, ahead = {},
    order = {}, days = {}, capabilities = {}, limits = {}, asked = {}, holds = {}, places = {}, seen = {},
    watched = {}, empty = {}, typed = {}, swept = {}, searched = {}, named = {}, measured = {},
    forgotten = {}, lined = {}, mixed = {} }
  pending = {}
  out = { ql = {}, count = 0, events = {}, deliveries = {}, ready = {} }
end

-- The keys of a queue's sorted sets.
local function keys_of(queue)
  local keys = cache.keys[queue]
  if not keys then
    local at = key.queue .. queue
    keys = { work = at .. '-work', locks = at .. '-locks', scheduled = at .. '-scheduled', depends = at
      .. '-depends', recur = at .. '-recur' }
    cache.keys[queue] = keys
  end
  return keys
end

-- The key of a worker's jobs.
local function jobs_of(worker)
  local at = cache.jobs[worker]
  if not at then
    at = key.worker .. worker .. ':jobs'
    cache.jobs[worker] = at
  end
  return at
end

-- The time of a command; Redis's own if the caller sends none.
local function moment(given)
  if given then return given end
  if not cache.clock then
    local time = call('TIME')
    cache.clock = time[1] + time[2] / 1e6
  end
  return cache.clock
end
