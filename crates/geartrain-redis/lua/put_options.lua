-- What is true of a job beyond Qless: its terms, its unique key, who waits for it, and its result.
--
-- A foreign script that completes, cancels or puts a job knows nothing of all this. So whatever is kept beside a job is compared with the job when it is used.

local RESULT_BYTES = 128
local ASIDE_BYTES_MAX = 4096

function side.check(terms)
  check_span('timeout', terms.attempt_max)
  check_span('result_for', terms.result_for)
  check_payload(terms.aside, 'aside', ASIDE_BYTES_MAX)
  if terms.crashes_max == 0 then bad('crashes_max', 'must be at least 1') end
end

-- Writes what is true of a job, or nothing if nothing is.
function side.write(of)
  if next(of.terms) == nil then
    of.terms = nil
    call('HDEL', of.at, 'gt-more')
  else
    call('HSET', of.at, 'gt-more', pack(of.terms))
  end
end

-- Unique keys ---------------------------------------------------------------------------------------------------------------------------------------

-- The unfinished job that holds a key in a queue.
function side.holder(queue, unique)
  local jid = call('HGET', key.unique .. queue, unique)
  local of = jid and job.load(jid)
  if of and job.is_unfinished(of) and of.queue == queue and of.terms and of.terms.unique == unique then return of end
  return nil
end

-- Lets a job have its key in its queue, unless another has it there.
function side.take_key(of)
  local unique = of.terms and of.terms.unique
  if not unique then return end
  local holder = side.holder(of.queue, unique)
  if not holder or holder.jid == of.jid then call('HSET', key.unique .. of.queue, unique, of.jid) end
end

function side.let_go(of)
  local unique = of.terms and of.terms.unique
  if unique and call('HGET', key.unique .. of.queue, unique) == of.jid then call('HDEL', key.unique .. of.queue, unique) end
end

-- Expiries: those that are queued and must start in time ----------------------------------------------------------------------------------------------

function side.enter(of)
  if of.terms and of.terms.expires then zset.add(key.expiries, of.terms.expires, of.jid) end
end

function side.leave(of)
  if of.terms and of.terms.expires then zset.remove(key.expiries, of.jid) end
end

-- Since when a job must not start any more, if that is so.
function side.late_since(of)
  local expires = of.terms and of.terms.expires
  if expires and expires < now then return expires end
  return nil
end

-- Somebody decides that a job is to run after all.
function side.renew(of)
  local terms = of.terms
  if not terms then return end
  if terms.expires and terms.expires <= now then terms.expires = nil end
  terms.crashes, terms.evidence = nil, nil
  side.write(of)
end

-- The attempt at a job is over, and with it its deadline.
function side.end_attempt(of)
  if of.terms and of.terms.attempt then
    if of.terms.attempt.deadline then zset.remove(key.deadlines, of.jid) end
    of.terms.attempt = nil
    side.write(of)
  end
end

-- How long a job waits that is tried again, if that is its own affair.
function side.backoff(of, chance)
  local backoff = of.terms and of.terms.backoff
  if not backoff then return nil end
  local before = tonumber(of.retries) - tonumber(of.remaining)
  if before < 0 then before = 0 end
  local first, factor, max, jitter = backoff[1], backoff[2], backoff[3], backoff[4]
  local power = factor ^ before
  if power > finite_max then power = finite_max end
  local wait = finite(first * power)
  if wait > max then wait = max end
  return finite(wait * (1 + jitter * (2 * chance - 1)))
end

-- Those who wait for a job ----------------------------------------------------------------------------------------------------------------------------

-- A waiter as text that sorts as its numbers do.
local function waiter_text(waiter)
  return large.digits(waiter[1]) .. large.digits(waiter[2]) .. large.digits(waiter[3])
end

local function stop_waiting(text, jid)
  zset.remove(key.waiters, text .. jid)
  call('LREM', key.waiting .. jid, 0, text)
end

-- The job that a waiter waits for.
function side.awaited_by(text)
  local found = zset.ask('ZRANGEBYLEX', key.waiters, '[' .. text, '(' .. text .. '\255', 'LIMIT', 0, 1)[1]
  if not found then return nil end
  local jid = found:sub(49)
  local state = call('HGET', key.job .. jid, 'state')
  if state and state ~= 'complete' and state ~= 'failed' then return jid end
  -- A foreign script ended it and told nobody.
  stop_waiting(text, jid)
  return nil
end

-- Refuses somebody who waits for another job.
function side.check_waiter(waiter, jid)
  local text = waiter_text(waiter)
  local other = side.awaited_by(text)
  if other and other ~= jid then bad('waiter', 'waits for job ' .. other .. ' already') end
  return text, other ~= nil
end

function side.attach(of, waiter)
  local text, there = side.check_waiter(waiter, of.jid)
  if there then return end
  zset.add(key.waiters, 0, text .. of.jid)
  call('RPUSH', key.waiting .. of.jid, text)
  side.set_waits(of, of.waits + 1)
end

function side.set_waits(of, waits)
  of.waits = waits
  of.terms = of.terms or {}
  of.terms.waits = waits > 0 and waits or nil
  side.write(of)
end

-- Tells everybody who waits for a job, and says how many they are.
function side.tell(of, told)
  if of.waits == 0 then return 0 end
  local waiters = call('LRANGE', key.waiting .. of.jid, 0, -1)
  local rest = pack(of.jid) .. pack(told)
  for _, text in ipairs(waiters) do
    local front, connection, number = text:sub(1, 16), text:sub(17, 32), text:sub(33)
    out.told[#out.told + 1] = key.told .. large.text(front)
    out.told[#out.told + 1] = '\147\147' .. large.pack(front) .. large.pack(connection) .. large.pack(number) .. rest
  end
  return #waiters
end

-- Lets all go who wait for a job. That nobody does is still to be written.
function side.dismiss(of)
  if of.waits == 0 then return end
  for _, text in ipairs(call('LRANGE', key.waiting .. of.jid, 0, -1)) do zset.remove(key.waiters, text .. of.jid) end
  call('DEL', key.waiting .. of.jid)
end

-- One leaves.
function side.detach(text, jid)
  stop_waiting(text, jid)
  local of = job.load(jid)
  if not of then return end
  side.set_waits(of, call('LLEN', key.waiting .. jid))
  side.abandon_if_unwanted(of)
end

-- Those who leave do so in the order of their numbers. Answers how many they were.
-- kind: One, Connection, Front or Everyone; who: as many numbers as it takes
function side.leave_all(kind, who)
  local first = ''
  for place = 1, kind == 'Everyone' and 0 or #who do first = first .. large.digits(who[place]) end
  local low, high = '-', '+'
  if first ~= '' then low, high = '[' .. first, '(' .. first .. '\255' end
  local leaving = zset.ask('ZRANGEBYLEX', key.waiters, low, high)
  for _, found in ipairs(leaving) do side.detach(found:sub(1, 48), found:sub(49)) end
  return #leaving
end

-- Detaches up to so many waiters of a result stream, given by its 16 hex digits. Answers whether these were
-- all.
function side.detach_stream(digits, max)
  local low, high = '[' .. digits, '(' .. digits .. '\255'
  local leaving = zset.ask('ZRANGEBYLEX', key.waiters, low, high, 'LIMIT', 0, max)
  for _, found in ipairs(leaving) do side.detach(found:sub(1, 48), found:sub(49)) end
  return #leaving < max
end

-- Removes a job that lived only as long as somebody waited for it, if nobody does. The job is as it was loaded, but for its state.
function side.abandon_if_unwanted(of)
  if not of.terms or of.terms.lives ~= 'WhileAwaited' or of.waits > 0 then return end
  if not job.is_unfinished(of) or of.state == 'running' or #job.dependents(of.jid) > 0 then return end
  if say.listening() then say.event('Abandoned', { jid = of.jid, queue = of.queue }) end
  job.remove(of)
end

-- Forgets all about a job that is being removed.
function side.forget(of)
  if of.terms then
    side.let_go(of)
    side.leave(of)
  end
  if of.terms and of.terms.attempt then zset.remove(key.deadlines, of.jid) end
  side.dismiss(of)
end

-- Results ---------------------------------------------------------------------------------------------------------------------------------------------

local function results_bytes()
  return option.count('results-bytes')
end

-- Refuses a result that could not be kept.
function side.check_result(of, result)
  if not result or not of.terms or not of.terms.result_for then return end
  local bytes, max = bytes_of(result[2]), results_bytes() - RESULT_BYTES
  if max < 0 then max = 0 end
  if bytes > max then refuse('TooLarge', { what = 'result', bytes = bytes, max = max }) end
end

local function drop_result(jid)
  local stored = call('HGET', key.results, jid)
  if not stored then return end
  call('HDEL', key.results, jid)
  call('ZREM', key.ages, jid)
  call('ZREM', key.ends, jid)
  call('HINCRBY', key.counts, 'results-bytes', -cmsgpack.unpack(stored).size)
end
side.drop_result = drop_result

local function keep_result(of, how, outcome)
  local said = type(how) == 'table' and #how.Failed.message or 0
  local size, max = bytes_of(outcome[2]) + said + RESULT_BYTES, results_bytes()
  if size > max then return end
  local jid = of.jid
  drop_result(jid)
  local until_ = finite(now + of.terms.result_for)
  call('HSET', key.results, jid, pack({ how = how, outcome = outcome, ended = now, ['until'] = until_, size = size }))
  call('ZADD', key.ages, call('HINCRBY', key.counts, 'results', 1), jid)
  call('ZADD', key.ends, until_, jid)
  local bytes = call('HINCRBY', key.counts, 'results-bytes', size)
  while bytes > max do
    local oldest = call('ZRANGE', key.ages, 0, 0)[1]
    if not oldest then break end
    drop_result(oldest)
    bytes = tonumber(call('HGET', key.counts, 'results-bytes'))
  end
  if say.listening() then say.event('ResultKept', { jid = jid }) end
end

-- A result that is kept and not too old.
function side.result(jid)
  local stored = call('HGET', key.results, jid)
  local kept = stored and cmsgpack.unpack(stored)
  if not kept or kept['until'] <= now then return nil end
  return { jid = jid, how = kept.how, outcome = kept.outcome, ended = kept.ended, ['until'] = kept['until'] }
end

-- What is to be done when a job was just completed for good, or failed.
function side.conclude(of, how, outcome)
  if not of.terms then return end
  outcome = outcome or { how == 'Completed' and 0 or 1, NO_BYTES }
  side.tell(of, { Ended = { how, outcome } })
  side.dismiss(of)
  if of.waits > 0 then side.set_waits(of, 0) end
  if not of.terms then return end
  if of.terms.result_for then keep_result(of, how, outcome) end
  if of.terms.afterwards == 'Forget' and #job.dependents(of.jid) == 0 then job.remove(of) end
end

-- Whether anything is true of a job beyond who waits for it and what is known of its attempt.
function side.is_particular(terms)
  for name in pairs(terms) do
    if name ~= 'waits' and name ~= 'attempt' then return true end
  end
  return false
end

-- What is shown of a job beyond Qless; none if nothing is.
function side.particulars(of)
  local terms, attempt = of.terms or {}, job.attempt(of)
  if not side.is_particular(terms) and of.waits == 0 and not attempt.deadline and not attempt.progress then return nil end
  return {
    unique = terms.unique, submissions = 1 + (terms.joined or 0), attached = of.waits,
    lives = terms.lives or 'Always', afterwards = terms.afterwards or 'Keep', result_for = terms.result_for,
    expires = terms.expires, attempt_max = terms.attempt_max, deadline = attempt.deadline, backoff = terms.backoff,
    crashes_max = terms.crashes_max, crashes = terms.crashes or 0, evidence = terms.evidence, progress = attempt.progress,
    aside = terms.aside,
  }
end

-- Terms of a put ------------------------------------------------------------------------------------------------------------------------------------

-- Answers a put of a job that is there and is to be left alone.
function side.join_existing(of, terms)
  if terms and terms.attach and job.is_unfinished(of) then side.attach(of, terms.attach) end
  return 'Existing'
end

-- Looks at the terms of a put that makes a job or puts it again. Answers it if another job stands for it.
function side.agree(of, asked)
  local terms, jid = asked.terms, asked.jid
  local other = not of and terms.unique and side.holder(asked.queue, terms.unique)
  if other then
    if terms.attach then side.check_waiter(terms.attach, other.jid) end
    local kept = other.terms
    kept.joined = (kept.joined or 0) + 1
    if terms.result_for and terms.result_for > (kept.result_for or 0) then kept.result_for = terms.result_for end
    if not terms.lives then kept.lives = nil end
    side.write(other)
    if terms.attach then side.attach(other, terms.attach) end
    if say.listening() then say.event('Coalesced', { jid = other.jid, queue = asked.queue, submissions = 1 + kept.joined }) end
    return { Coalesced = { other.jid } }
  end
  if terms.attach then side.check_waiter(terms.attach, jid) end
  if terms.expires and terms.expires <= now then
    bad('expires', 'must be after ' .. exact(now) .. ', which is now, not ' .. exact(terms.expires))
  end
  if terms.roll_call and able.count(asked.queue, asked.klass) == 0 then
    refuse('NobodyCan', { queue = asked.queue, klass = asked.klass })
  end
  return nil
end

-- What is kept of the terms of a put.
function side.kept(terms)
  return {
    unique = terms.unique, lives = terms.lives, afterwards = terms.afterwards, result_for = terms.result_for,
    expires = terms.expires, attempt_max = terms.attempt_max, backoff = terms.backoff, crashes_max = terms.crashes_max,
    aside = terms.aside,
  }
end
