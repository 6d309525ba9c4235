-- Documents of replies: each takes what a native operation replies and returns JSON. Every key is always there.

local document, text, number, flag = json.document, json.text, json.number, json.flag

-- The name of a variant in documents: LockExpired is lock-expired.
local function kebab(name)
  return (name:gsub('^%u', string.lower):gsub('%u', function(letter) return '-' .. letter:lower() end))
end
view.kebab = kebab

local function progress(of)
  if not of then return nil end
  local part, whole = of.portion[1], of.portion[2]
  local percent = whole == 0 and 0 or math.min(floor(part * 100 / whole), 100)
  return document('part', number(part), 'whole', number(whole), 'percent', number(percent),
    'left', number(of.seconds_left))
end
view.progress = progress

local function details(of)
  if not of then return nil end
  local backoff = of.backoff
  return document('unique', of.unique and fields.show_bytes(of.unique), 'submissions', number(of.submissions),
    'attached', number(of.attached), 'lives', text(kebab(of.lives)), 'afterwards', text(kebab(of.afterwards)),
    'keep_result', number(of.result_for), 'expires', number(of.expires), 'timeout', number(of.attempt_max),
    'deadline', number(of.deadline),
    'backoff', backoff and document('first', number(backoff[1]), 'factor', number(backoff[2]),
      'max', number(backoff[3]), 'jitter', number(backoff[4])),
    'crashes_max', number(of.crashes_max), 'crashes', number(of.crashes), 'evidence', text(of.evidence),
    'progress', progress(of.progress),
    'on_dependency_failure', text(kebab(of.on_dependency_failure)), 'traceparent', text(of.traceparent))
end

local function failure(of)
  if not of then return nil end
  return document('group', text(of.group), 'message', text(of.message), 'when', number(of.when),
    'worker', text(of.worker))
end

-- Histories -------------------------------------------------------------------------------------------------

local is_end = { TimedOut = true, Log = true }

-- Where the end of an attempt belongs in a history, at or behind `from`: behind the pop that began the attempt,
-- and before the next one.
local function place_of(ended, history, from)
  local function next_pop(at)
    while at <= #history and not (type(history[at].what) == 'table' and history[at].what.Popped) do at = at + 1 end
    return at
  end
  local function has_ended(first, last)
    for at = first, last do
      local what = history[at].what
      if what == 'Done' or type(what) == 'table' and what.Failed and what.Failed.worker then return true end
    end
    return false
  end
  local popped = next_pop(from)
  while popped <= #history do
    local behind = next_pop(popped + 1)
    local in_time = history[popped].when <= ended.when
      and (not history[behind] or ended.when <= history[behind].when)
    if in_time and history[popped].what.Popped.worker == ended.worker
      and (ended.reason == 'Deadline' or not has_ended(popped + 1, behind - 1)) then
      for at = popped + 1, behind - 1 do
        local what = history[at].what
        local name = type(what) == 'table' and next(what) or what
        if history[at].when >= ended.when and (not is_end[name] or history[at].when > ended.when) then return at end
      end
      return behind
    end
    popped = behind
  end
  -- Its pop is not in the history any more.
  for at = from, #history do
    if history[at].when > ended.when then return at end
  end
  return #history + 1
end

local show_entry = {
  Put = function(of) return 'queue', text(of.queue) end,
  Popped = function(of) return 'worker', text(of.worker) end,
  Failed = function(of) return 'worker', text(of.worker), 'group', text(of.group) end,
  HandedBack = function(of) return 'worker', text(of.worker) end,
  Crashed = function(of) return 'worker', text(of.worker) end,
  Log = function(of) return 'message', text(of.message), 'data', of.data end,
  AttemptEnded = function(of)
    return 'reason', text(kebab(of.reason)), 'worker', text(of.worker), 'group', text(of.group), 'message',
      text(of.message)
  end,
}

local function entry(of)
  local name, inside = native.variant(of.what)
  if not inside then return document('when', number(of.when), 'what', text(kebab(name))) end
  return document('when', number(of.when), 'what', text(kebab(name)), show_entry[name](inside))
end

-- The history and the ends of attempts in one list.
local function story(of)
  local history, from = of.history, 1
  for _, ended in ipairs(of.attempts or {}) do
    local at = place_of(ended, history, from)
    table.insert(history, at, { when = ended.when, what = { AttemptEnded = ended } })
    from = at + 1
  end
  return json.array(history, entry)
end

-- Jobs ------------------------------------------------------------------------------------------------------

-- A job, with its history.
function view.job(of)
  local name, inside = native.variant(of.state)
  inside = inside or {}
  local lock, stalled, failed = inside.lock, false, of.past_failure
  if name == 'Running' then stalled = lock.expires <= now end
  if name == 'Failed' then failed = inside.failure end
  return document('jid', text(of.jid), 'klass', text(of.klass), 'queue', text(of.queue),
    'state', text(kebab(name)), 'stalled', flag(stalled), 'priority', number(of.priority),
    'retries', number(of.retries), 'remaining', number(of.remaining),
    'payload', fields.show_payload(of.payload), 'tags', json.texts(of.tags), 'tracked', flag(of.tracked),
    'due', number(inside.due),
    'lock', lock and document('worker', text(lock.worker), 'token', text(lock.token), 'expires',
      number(lock.expires)),
    'progress', of.particulars and progress(of.particulars.progress), 'completed', number(inside.at),
    'failure', failure(failed), 'dependencies', json.texts(inside.on or {}),
    'dependents', json.texts(of.dependents), 'spawned_from', text(of.spawned_from),
    'particulars', details(of.particulars), 'history', story(of))
end

function view.jobs(jids)
  local all = {}
  for _, jid in ipairs(jids) do
    local of = native.job_of(jid)
    if of then all[#all + 1] = view.job(of) end
  end
  return json.array(all)
end

-- A popped job, as it is in the reply of a pop.
function view.popped(of)
  local lock, about = of[8], of[9]
  return document('jid', text(of[1]), 'queue', text(of[2]), 'klass', text(of[3]),
    'payload', fields.show_payload(of[4]), 'priority', number(of[5]), 'retries', number(of[6]),
    'remaining', number(of[7]), 'worker', text(lock[1]), 'token', text(lock[2]), 'expires', number(lock[3]),
    'deadline', number(about and about.deadline))
end

function view.tombstone(of)
  return document('jid', text(of.jid), 'state', text('cancelled'), 'queue', text(of.queue),
    'klass', text(of.klass), 'was', text(kebab(of.state)), 'when', number(of.when), 'by', text(of.by),
    'because', text(of.because))
end

function view.status(of)
  return document('jid', text(of.jid), 'queue', text(of.queue), 'state', text(kebab(of.state)),
    'progress', progress(of.progress), 'submissions', number(of.submissions), 'attached', number(of.attached))
end

-- A result: how the job ended, its result as it is stored, and until when it is kept.
function view.result(jid, how, outcome, ended, until_)
  local name, inside = native.variant(how)
  inside = inside or {}
  return document('jid', text(jid), 'how', text(kebab(name)), 'group', text(inside.group),
    'message', text(inside.message), 'code', number(outcome[1]), 'result', fields.show_payload(outcome[2]),
    'ended', number(ended), 'until', number(until_))
end

-- Why jobs are not running ----------------------------------------------------------------------------------

local show_reason = {
  Running = function(of)
    return 'worker', text(of.worker), 'until', number(of['until']), 'warned', flag(of.warned)
  end,
  Stalled = function(of)
    return 'worker', text(of.worker), 'since', number(of.since), 'remaining', number(of.remaining), 'warned',
      flag(of.warned)
  end,
  Complete = function(of) return 'at', number(of.at) end,
  Failed = function(of) return 'group', text(of.group), 'message', text(of.message) end,
  SetAside = function(of)
    return 'group', text(of.group), 'crashes', number(of.crashes), 'evidence', text(of.evidence)
  end,
  DependsOn = function(of)
    local failed = of.failed
    return 'jid', text(of.jid), 'state', text(kebab(of.state)), 'count', number(of.count),
      'failed', failed and document('jid', text(failed.jid), 'group', text(failed.group), 'message',
        text(failed.message))
  end,
  Scheduled = function(of) return 'at', number(of.at) end,
  Expired = function(of) return 'at', number(of.at) end,
  Paused = function(of) return 'queue', text(of.queue) end,
  Concurrency = function(of)
    return 'max', number(of.max), 'running', number(math.max(of.running, of.max)),
      'held', json.array(of.held, function(held) return document('jid', text(held[1]), 'worker', text(held[2])) end)
  end,
  RateLimit = function(of) return 'until', number(of['until']) end,
  NoWorker = function(of)
    return 'klass', text(of.klass), 'asked', number(of.asked), 'others', json.texts(of.others or {}),
      'workers', number(of.workers)
  end,
  Behind = function(of) return 'jobs', number(of.jobs) end,
  Next = function() end,
}

function view.why(of)
  local stalled = false
  local function reason(one)
    local name, inside = native.variant(one)
    stalled = stalled or name == 'Stalled'
    return document('reason', text(kebab(name)), show_reason[name](inside))
  end
  local reasons = json.array(of.reasons, reason)
  return document('jid', text(of.jid), 'state', text(kebab(of.state)), 'queue', text(of.queue),
    'stalled', flag(stalled), 'reasons', reasons)
end

-- Queues and workers ----------------------------------------------------------------------------------------

-- The keys of a queue: its counts, and its figures if there are any.
local function queue_keys(of, figures)
  return 'name', text(of.name), 'waiting', number(of.waiting), 'running', number(of.running),
    'stalled', number(of.stalled), 'scheduled', number(of.scheduled), 'depends', number(of.depends),
    'recurring', number(of.recurring), 'paused', flag(of.paused), 'failed', number(figures.failed),
    'failed_or_more', flag(figures.failed_or_more), 'oldest', number(figures.oldest), 'per_minute',
    number(figures.rate or nil)
end

function view.queue(of, figures)
  return document(queue_keys(of, figures))
end

function view.why_queue(of)
  local function one(unasked) return document('klass', text(unasked[1]), 'jobs', number(unasked[2])) end
  return document('next_due', number(of.next_due), 'concurrency_max', number(of.concurrency_max),
    'rate_limited_until', number(of.rate_limited_until), 'asked', number(of.asked),
    'workers', number(of.workers), 'waiting_examined', number(of.waiting_examined),
    'unasked', json.array(of.unasked or {}, one), 'depends_examined', number(of.depends_examined),
    'behind_failed', number(of.behind_failed), 'failed_dependency', text(of.failed_dependency),
    queue_keys(of.counts, {}))
end

local function summary(of)
  return document('count', number(of.count), 'mean', number(of.mean), 'std', number(of.std),
    'histogram', json.array(of.histogram, number))
end

function view.stats(queue, day, of)
  return document('queue', text(queue), 'day', text(fields.show_day(day)), 'wait', summary(of.wait),
    'run', summary(of.run), 'retries', number(of.retries), 'failed', number(of.failed),
    'failures', number(of.failures))
end

function view.limits(queue, of, max_concurrency)
  local function level(one) return document('priority', number(one[1]), 'max', number(one[2])) end
  local rate = of.rate
  return document('queue', text(queue), 'max', number(of.jobs_max),
    'by_priority', json.array(of.by_priority or {}, level),
    'rate', rate and document('count', number(rate[1]), 'per', number(rate[2]), 'burst', number(rate[3])),
    'max_concurrency', number(max_concurrency))
end

function view.capabilities(of)
  return json.array(of, function(one)
    return document('queue', text(one.queue), 'klass', text(one.klass), 'timeout', number(one.attempt_max))
  end)
end

function view.worker(of, abilities)
  return document('name', text(of.name), 'running', number(of.jobs), 'stalled', number(of.stalled),
    'seen', number(of.seen), 'can', view.capabilities(abilities or {}))
end

function view.recurring(of)
  local runs, run = {}, of.next
  for at = 1, 5 do runs[at], run = run, run + of.every.Interval end
  return document('jid', text(of.jid), 'queue', text(of.queue), 'klass', text(of.klass),
    'every', number(of.every.Interval), 'next', number(of.next), 'next_runs', json.array(runs, number),
    'count', number(of.count),
    'backlog', number(of.backlog), 'priority', number(of.priority), 'retries', number(of.retries),
    'tags', json.texts(of.tags), 'payload', fields.show_payload(of.payload))
end

-- Refusals --------------------------------------------------------------------------------------------------

-- Of each kind its code, its sentence with the names of fields in braces, and what to do.
local refusals = {
  NoSuchJob = { 'no-such-job', 'job {jid} does not exist', 'list the jobs to see which exist' },
  NoSuchRecurring = { 'no-such-recurring', 'recurring job {jid} does not exist',
    'list the recurring jobs to see which exist' },
  NotRunning = { 'not-running', 'job {jid} is not running: it is {state}', 'a worker must pop it first' },
  HeldByAnother = { 'held-by-another', 'job {jid} is held by {holder}, not by {worker}',
    'send the token or the worker that it was popped with' },
  LockLost = { 'lock-lost', 'the lock on job {jid} is lost: the job is {state}',
    'stop working on it, this attempt is over' },
  WrongQueue = { 'wrong-queue', 'job {jid} is in queue {queue}, not in {given}' },
  NotInDepends = { 'not-in-depends', 'job {jid} does not wait for other jobs: it is {state}',
    'only a job that was put with dependencies can gain or lose some' },
  IsDependency = { 'is-dependency', 'job {dependent} depends on job {jid}: cancel both or neither' },
  Cycle = { 'cycle', 'job {jid} would depend on itself, through {through}', 'leave out that dependency' },
  TooManyDependencies = { 'too-many-dependencies',
    'more than {max} jobs lie behind the dependencies of job {jid}: too many to rule out a cycle',
    'use fewer dependencies' },
  QueueFull = { 'queue-full',
    'queue {queue} has {jobs} unfinished jobs and takes {max}: try again later, or raise the limit' },
  NobodyCan = { 'no-capable-worker',
    'no worker has announced that it can do {klass} in queue {queue}: start one, or put without roll call' },
  TooLarge = { 'too-large', '{what} of {bytes} bytes is over the limit of {max}' },
  BadArgument = { 'bad-argument', '{what} {why}' },
}

-- What a refusal of a native operation says: code, sentence, and what to do.
function view.refusal(kind, given)
  local known = refusals[kind]
  local message = known[2]:gsub('{(%a+)}', function(name)
    local value = given[name]
    if name == 'state' then return kebab(value) end
    return type(value) == 'number' and string.format('%.0f', value) or value
  end)
  local help = known[3]
  if kind == 'TooLarge' and given.what == 'payload' then
    help = 'store the data in a file or a database, and submit its location'
  end
  return known[1], message, help
end

function view.error(code, message, help)
  return document('error', document('code', text(code), 'message', text(message), 'help', text(help)))
end
