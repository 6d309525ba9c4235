-- Put options: what a job has beyond Qless: its unique key, expiry, back-off, the clients that wait for its
-- result, and the result.
--
-- A foreign script that completes, cancels or puts a job ignores all this. So everything stored beside a job
-- is compared with the job when it is used.

local RESULT_BYTES = 128
local LISTED = '001fffffffffffff' -- the stream id of clients of the JSON library, which wait with BLPOP
local ENDING_SECONDS = 60 -- how long the ending of a job is kept for them
local ASIDE_BYTES_MAX = 4096

local DIGIT = '[0-9a-f]'
local TRACEPARENT = '^00%-(' .. DIGIT:rep(32) .. ')%-(' .. DIGIT:rep(16) .. ')%-' .. DIGIT:rep(2) .. '$'

-- Refuses what is no trace context of the W3C.
local function check_traceparent(text)
  local trace, parent = text:match(TRACEPARENT)
  if not trace or not trace:find('[^0]') or not parent:find('[^0]') then
    bad('traceparent', 'must be 00-<trace id>-<parent id>-<flags> with 32, 16 and 2 hexadecimal digits in '
      .. 'lower case, and ids that are not all zeros')
  end
end

function put_options.check(terms)
  check_span('timeout', terms.attempt_max)
  check_span('result_for', terms.result_for)
  check_payload(terms.aside, 'aside', ASIDE_BYTES_MAX)
  if terms.traceparent then check_traceparent(terms.traceparent) end
  if terms.crashes_max == 0 then bad('crashes_max', 'must be at least 1') end
end

-- Writes the options of a job, or removes them if there are none.
function put_options.write(of)
  if next(of.terms) == nil then
    of.terms = nil
    call('HDEL', of.at, 'gt-more')
  else
    call('HSET', of.at, 'gt-more', pack(of.terms))
  end
end

-- Unique keys -----------------------------------------------------------------------------------------------

-- The unfinished job that holds a unique key in a queue.
function put_options.holder(queue, unique)
  local jid = call('HGET', key.unique .. queue, unique)
  local of = jid and job.load(jid)
  if of and job.is_unfinished(of) and of.queue == queue and of.terms and of.terms.unique == unique then
    return of
  end
  return nil
end

-- Gives a job its unique key in its queue, unless another job has it.
function put_options.claim_key(of)
  local unique = of.terms and of.terms.unique
  if not unique then return end
  local holder = put_options.holder(of.queue, unique)
  if not holder or holder.jid == of.jid then call('HSET', key.unique .. of.queue, unique, of.jid) end
end

function put_options.release_key(of)
  local unique = of.terms and of.terms.unique
  if unique and call('HGET', key.unique .. of.queue, unique) == of.jid then
    call('HDEL', key.unique .. of.queue, unique)
  end
end

-- Expiries of queued jobs -----------------------------------------------------------------------------------

function put_options.index_expiry(of)
  if of.terms and of.terms.expires then zset.add(key.expiries, of.terms.expires, of.jid) end
end

function put_options.unindex_expiry(of)
  if of.terms and of.terms.expires then zset.remove(key.expiries, of.jid) end
end

-- Since when a job is expired, or nil.
function put_options.expired_since(of)
  local expires = of.terms and of.terms.expires
  if expires and expires < now then return expires end
  return nil
end

-- Removes the expiry of a job that a caller puts back to work.
function put_options.clear_expiry(of)
  local terms = of.terms
  if not terms then return end
  if terms.expires and terms.expires <= now then terms.expires = nil end
  terms.crashes, terms.evidence = nil, nil
  put_options.write(of)
end

-- Ends the attempt at a job, and with it its deadline.
function put_options.end_attempt(of)
  if of.terms and of.terms.attempt then
    if of.terms.attempt.deadline then zset.remove(key.deadlines, of.jid) end
    of.terms.attempt = nil
    put_options.write(of)
  end
end

-- The backoff of jobs without one: first, factor, longest, jitter.
local DEFAULT_BACKOFF = { 1, 2, 60, 0.25 }

local function backoff_wait(of, backoff, chance)
  local before = tonumber(of.retries) - tonumber(of.remaining)
  if before < 0 then before = 0 end
  local first, factor, max, jitter = backoff[1], backoff[2], backoff[3], backoff[4]
  local power = factor ^ before
  if power > finite_max then power = finite_max end
  local wait = finite(first * power)
  if wait > max then wait = max end
  return finite(wait * (1 + jitter * (2 * chance - 1)))
end

-- The delay before the next attempt, if the job has its own back-off.
function put_options.backoff(of, chance)
  local backoff = of.terms and of.terms.backoff
  if not backoff then return nil end
  return backoff_wait(of, backoff, chance)
end

-- The same for a job without one.
function put_options.default_backoff(of, chance)
  return backoff_wait(of, DEFAULT_BACKOFF, chance)
end

-- Waiters for a result -------------------------------------------------------------------------------------

-- A waiter as text that sorts as its numbers do.
local function waiter_text(waiter)
  return int64.digits(waiter[1]) .. int64.digits(waiter[2]) .. int64.digits(waiter[3])
end

local function remove_waiter(text, jid)
  zset.remove(key.waiters, text .. jid)
  call('LREM', key.waiting .. jid, 0, text)
end

-- The job that a waiter waits for.
function put_options.awaited_by(text)
  local found = zset.read('ZRANGEBYLEX', key.waiters, '[' .. text, '(' .. text .. '\255', 'LIMIT', 0, 1)[1]
  if not found then return nil end
  local jid = found:sub(49)
  local state = call('HGET', key.job .. jid, 'state')
  if state and state ~= 'complete' and state ~= 'failed' then return jid end
  -- A foreign script ended the job without a delivery.
  remove_waiter(text, jid)
  return nil
end

-- Refuses a waiter that waits for another job.
function put_options.check_waiter(waiter, jid)
  local text = waiter_text(waiter)
  local other = put_options.awaited_by(text)
  if other and other ~= jid then bad('waiter', 'waits for job ' .. other .. ' already') end
  return text, other ~= nil
end

function put_options.attach(of, waiter)
  local text, there = put_options.check_waiter(waiter, of.jid)
  if there then return end
  zset.add(key.waiters, 0, text .. of.jid)
  call('RPUSH', key.waiting .. of.jid, text)
  put_options.set_waits(of, of.waits + 1)
end

function put_options.set_waits(of, waits)
  of.waits = waits
  of.terms = of.terms or {}
  of.terms.waits = waits > 0 and waits or nil
  put_options.write(of)
end

-- Attaches the clients of the JSON library to a job, as one waiter, and returns the list on which they wait.
function put_options.attach_list(of)
  local digest = redis.sha1hex(of.jid)
  call('ZADD', key.fronts, now, LISTED)
  local text = LISTED .. digest:sub(1, 32)
  if zset.score(key.waiters, text .. of.jid) == nil then
    zset.add(key.waiters, 0, text .. of.jid)
    call('RPUSH', key.waiting .. of.jid, text)
    put_options.set_waits(of, of.waits + 1)
  end
  return key.ended .. of.jid
end

-- Stores the ending of a job for the clients of the JSON library, and wakes the first one.
local function deliver_to_list(jid, ended)
  call('SET', key.ended .. jid .. ':is', pack({ how = ended[1], outcome = ended[2], at = now }), 'EX',
    ENDING_SECONDS)
  parked.push(key.ended .. jid, '1')
end

-- How a job ended for which such clients waited: how, outcome, at.
function put_options.ending(jid)
  local stored = call('GET', key.ended .. jid .. ':is')
  return stored and cmsgpack.unpack(stored)
end

-- Wakes the next client that waits for a job that has ended.
function put_options.wake_list(jid)
  if call('EXISTS', key.ended .. jid .. ':is') == 1 and call('EXISTS', key.ended .. jid) == 0 then
    parked.push(key.ended .. jid, '1')
  end
end

-- Queues a delivery for each waiter of a job, and returns their number.
function put_options.deliver(of, item)
  if of.waits == 0 then return 0 end
  local waiters = call('LRANGE', key.waiting .. of.jid, 0, -1)
  local rest = pack(of.jid) .. pack(item)
  for _, text in ipairs(waiters) do
    local stream, connection, number = text:sub(1, 16), text:sub(17, 32), text:sub(33)
    if stream ~= LISTED then
      out.deliveries[#out.deliveries + 1] = key.deliveries .. int64.text(stream)
      out.deliveries[#out.deliveries + 1] = '\147\147' .. int64.pack(stream) .. int64.pack(connection)
        .. int64.pack(number) .. rest
    elseif item.Ended then
      deliver_to_list(of.jid, item.Ended)
    end
  end
  return #waiters
end

-- Detaches all waiters of a job. The caller writes the job.
function put_options.detach_waiters(of)
  if of.waits == 0 then return end
  for _, text in ipairs(call('LRANGE', key.waiting .. of.jid, 0, -1)) do
    zset.remove(key.waiters, text .. of.jid)
  end
  call('DEL', key.waiting .. of.jid)
end

-- Detaches one waiter.
function put_options.detach(text, jid)
  remove_waiter(text, jid)
  local of = job.load(jid)
  if not of then return end
  put_options.set_waits(of, call('LLEN', key.waiting .. jid))
  put_options.remove_if_orphaned(of)
end

-- Detaches waiters in the order of their numbers, and returns how many. kind: One, Connection, Front or
-- Everyone; who: as many numbers as it takes
function put_options.detach_all(kind, who)
  local first = ''
  for place = 1, kind == 'Everyone' and 0 or #who do first = first .. int64.digits(who[place]) end
  local low, high = '-', '+'
  if first ~= '' then low, high = '[' .. first, '(' .. first .. '\255' end
  local leaving = zset.read('ZRANGEBYLEX', key.waiters, low, high)
  for _, found in ipairs(leaving) do put_options.detach(found:sub(1, 48), found:sub(49)) end
  return #leaving
end

-- Detaches up to `max` waiters of a result stream, given by its 16 hex digits. Returns whether these were
-- all.
function put_options.detach_stream(digits, max)
  local low, high = '[' .. digits, '(' .. digits .. '\255'
  local leaving = zset.read('ZRANGEBYLEX', key.waiters, low, high, 'LIMIT', 0, max)
  for _, found in ipairs(leaving) do put_options.detach(found:sub(1, 48), found:sub(49)) end
  return #leaving < max
end

-- Removes an ephemeral job without waiters. The job is as it was loaded, but for its state.
function put_options.remove_if_orphaned(of)
  if not of.terms or of.terms.lives ~= 'WhileAwaited' or of.waits > 0 then return end
  if not job.is_unfinished(of) or of.state == 'running' or #job.dependents(of.jid) > 0 then return end
  if publish.has_event_subscribers() then publish.event('Abandoned', { jid = of.jid, queue = of.queue }) end
  job.remove(of)
end

-- Removes everything stored beside a job that is being removed.
function put_options.forget(of)
  if of.terms then
    put_options.release_key(of)
    put_options.unindex_expiry(of)
  end
  if of.terms and of.terms.attempt then zset.remove(key.deadlines, of.jid) end
  put_options.detach_waiters(of)
end

-- Results ---------------------------------------------------------------------------------------------------

local function results_bytes()
  return option.count('results-bytes')
end

-- Refuses a result that cannot be stored.
function put_options.check_result(of, result)
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
put_options.drop_result = drop_result

local function keep_result(of, how, outcome)
  local said = type(how) == 'table' and #how.Failed.message or 0
  local size, max = bytes_of(outcome[2]) + said + RESULT_BYTES, results_bytes()
  if size > max then return end
  local jid = of.jid
  drop_result(jid)
  local until_ = finite(now + of.terms.result_for)
  call('HSET', key.results, jid, pack({ how = how, outcome = outcome, ended = now, ['until'] = until_,
    size = size }))
  call('ZADD', key.ages, call('HINCRBY', key.counts, 'results', 1), jid)
  call('ZADD', key.ends, until_, jid)
  local bytes = call('HINCRBY', key.counts, 'results-bytes', size)
  while bytes > max do
    local oldest = call('ZRANGE', key.ages, 0, 0)[1]
    if not oldest then break end
    drop_result(oldest)
    bytes = tonumber(call('HGET', key.counts, 'results-bytes'))
  end
  if publish.has_event_subscribers() then publish.event('ResultKept', { jid = jid }) end
end

-- A stored result that has not expired.
function put_options.result(jid)
  local stored = call('HGET', key.results, jid)
  local kept = stored and cmsgpack.unpack(stored)
  if not kept or kept['until'] <= now then return nil end
  return { jid = jid, how = kept.how, outcome = kept.outcome, ended = kept.ended, ['until'] = kept['until'] }
end

-- After a job has completed for good or failed: delivers and stores its result, and removes the job if it
-- asks for that.
function put_options.conclude(of, how, outcome)
  if not of.terms then return end
  outcome = outcome or { how == 'Completed' and 0 or 1, NO_BYTES }
  put_options.deliver(of, { Ended = { how, outcome } })
  put_options.detach_waiters(of)
  if of.waits > 0 then put_options.set_waits(of, 0) end
  if not of.terms then return end
  if of.terms.result_for then keep_result(of, how, outcome) end
  if of.terms.afterwards == 'Forget' and #job.dependents(of.jid) == 0 then job.remove(of) end
end

-- Whether a job has options besides waiters, the state of its attempt and dropped dependencies.
function put_options.has_any(terms)
  for name in pairs(terms) do
    if name ~= 'waits' and name ~= 'attempt' and name ~= 'upstream' then return true end
  end
  return false
end

-- A job's details beyond Qless, or nil.
function put_options.details(of)
  local terms, attempt = of.terms or {}, job.attempt(of)
  if not put_options.has_any(terms) and of.waits == 0 and not attempt.deadline and not attempt.progress then
    return nil
  end
  return {
    unique = terms.unique, submissions = 1 + (terms.joined or 0), attached = of.waits,
    lives = terms.lives or 'Always', afterwards = terms.afterwards or 'Keep', result_for = terms.result_for,
    expires = terms.expires, attempt_max = terms.attempt_max, deadline = attempt.deadline,
    backoff = terms.backoff, crashes_max = terms.crashes_max, crashes = terms.crashes or 0,
      evidence = terms.evidence, progress = attempt.progress,
    aside = terms.aside, on_dependency_failure = terms.on_dependency_failure or 'Wait',
    traceparent = terms.traceparent,
  }
end

-- Options of a put ------------------------------------------------------------------------------------------

-- The answer to a put of an existing job that stays as it is.
function put_options.join_existing(of, terms)
  if terms and terms.attach and job.is_unfinished(of) then put_options.attach(of, terms.attach) end
  return 'Existing'
end

-- Checks the options of a put that creates or replaces a job. Returns the answer if the put is coalesced with
-- another job.
function put_options.check_put(of, asked)
  local terms, jid = asked.terms, asked.jid
  local other = not of and terms.unique and put_options.holder(asked.queue, terms.unique)
  if other then
    if terms.attach then put_options.check_waiter(terms.attach, other.jid) end
    local kept = other.terms
    kept.joined = (kept.joined or 0) + 1
    if terms.result_for and terms.result_for > (kept.result_for or 0) then
      kept.result_for = terms.result_for
    end
    if not terms.lives then kept.lives = nil end
    put_options.write(other)
    if terms.attach then put_options.attach(other, terms.attach) end
    if publish.has_event_subscribers() then
      publish.event('Coalesced', { jid = other.jid, queue = asked.queue, submissions = 1 + kept.joined })
    end
    return { Coalesced = { other.jid } }
  end
  if terms.attach then put_options.check_waiter(terms.attach, jid) end
  if terms.expires and terms.expires <= now then
    bad('expires', 'must be after ' .. exact(now) .. ', which is now, not ' .. exact(terms.expires))
  end
  if terms.roll_call and capabilities.count(asked.queue, asked.klass) == 0 then
    refuse('NobodyCan', { queue = asked.queue, klass = asked.klass })
  end
  return nil
end

-- The options of a put that are stored.
function put_options.stored(terms)
  return {
    unique = terms.unique, lives = terms.lives, afterwards = terms.afterwards, result_for = terms.result_for,
    expires = terms.expires, attempt_max = terms.attempt_max, backoff = terms.backoff,
    crashes_max = terms.crashes_max, aside = terms.aside, on_dependency_failure = terms.on_dependency_failure,
    traceparent = terms.traceparent,
  }
end
