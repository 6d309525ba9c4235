-- Where a call comes in, and what is done when it is over.

-- Writes all that is pending.
-- Where jobs are comes first, and figures last: an error in one of these must not keep the others from being
-- written.
local function settle()
  local failed
  for at in pairs(pending) do
    local done, why = pcall(zset.settle, at)
    if not done then failed = why end
  end
  if failed then error(failed) end
  if known.new_tokens then call('SET', key.token, string.format('%.0f', known.token)) end
  if next(known.order) then order.settle() end
  if next(known.days) then stats.settle() end
end

-- Tells everybody: events first, then those who wait for jobs, then Qless's channels, then whoever sleeps.
local function tell()
  if #out.events > 0 then events.publish() end
  for at = 1, #out.told, 2 do call('PUBLISH', out.told[at], out.told[at + 1]) end
  local ql = out.ql
  for at = 1, out.count, 2 do call('PUBLISH', ql[at], ql[at + 1]) end
  if next(out.woken) then sleep.wake() end
end

-- Runs one call to its end. Whatever was done before something unforeseen went wrong is written down and told, because it was done.
local function run(of_prefix, execute, ...)
  begin(of_prefix)
  local done, reply = pcall(execute, ...)
  settle()
  tell()
  if done then return reply end
  -- Redis would end the text at a NUL.
  if type(reply) == 'table' and reply.text then return { err = 'ERR user_script:1: ' .. reply.text:gsub('%z', ' ') } end
  error(reply)
end

local function main(keys, arguments)
  if #keys == 0 then return run('', qless.execute, arguments) end
  if #keys == 1 then return run(keys[1], native.execute, arguments[1]) end
  return { err = 'ERR user_script:1: No Keys should be provided' }
end

-- For scripts that do several things at once, with rules of their own between them: does some work at a moment, and at its end writes and tells all of it.
-- What the work is given are the operations, each with fields by their names as in the files of these rules.
local function within(of_prefix, at, work)
  return run(of_prefix, function()
    now = at
    return work({
      put = put.put, pop = pop.pop, peek = pop.peek, heartbeat = finish.heartbeat, complete = finish.complete, fail = finish.fail,
      retry = finish.retry, timeout = finish.timeout, cancel = finish.cancel, unfail = finish.unfail, hand_back = finish.hand_back,
      priority = change.priority, depend = change.depend, log = change.log, track = change.track, add_tags = change.add_tags,
      remove_tags = change.remove_tags, pause = change.pause, recur = recur.recur, unrecur = recur.unrecur, length = read.length,
      jobs = read.jobs, get = job.load,
    })
  end)
end
