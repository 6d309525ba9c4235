-- The entry point of a call, and what is written and published at its end.

-- Writes all pending changes. Job indexes come first and statistics last: an error in one of these must not
-- keep the others from being written.
local function flush()
  local failed
  for at in pairs(pending) do
    local done, why = pcall(zset.flush, at)
    if not done then failed = why end
  end
  if failed then error(failed) end
  if cache.new_tokens then call('SET', key.token, string.format('%.0f', cache.token)) end
  if next(cache.forgotten) then klasses.flush() end
  if next(cache.order) then order.flush() end
  if next(cache.days) then stats.flush() end
end

-- Publishes events, then deliveries, then Qless's messages, then wakes parked pops.
local function publish_all()
  if #out.events > 0 then events.publish() end
  for at = 1, #out.deliveries, 2 do call('PUBLISH', out.deliveries[at], out.deliveries[at + 1]) end
  local ql = out.ql
  for at = 1, out.count, 2 do call('PUBLISH', ql[at], ql[at + 1]) end
  if next(out.ready) then parked.wake() end
end

-- Runs one call to its end. What was done before an unexpected error is written and published, because Redis
-- does not roll back.
local function run(of_prefix, execute, ...)
  begin(of_prefix)
  local done, reply = pcall(execute, ...)
  if done and cache.behind then
    local applied, why_not = pcall(policies.apply)
    if not applied then done, reply = false, why_not end
  end
  flush()
  publish_all()
  if done then return reply end
  -- Redis would end the text at a NUL.
  if type(reply) == 'table' and reply.text then
    return { err = 'ERR user_script:1: ' .. reply.text:gsub('%z', ' ') }
  end
  error(reply)
end

local function main(keys, arguments)
  if #keys == 0 then return run('', qless.execute, arguments) end
  if #keys == 1 then return run(keys[1], native.execute, arguments[1]) end
  return { err = 'ERR user_script:1: No Keys should be provided' }
end

-- For users' scripts that combine several operations atomically: runs `work` at a time, and writes and
-- publishes everything at its end. `work` gets the operations, each with named fields as in these files.
local function within(of_prefix, at, work)
  return run(of_prefix, function()
    now = at
    return work({
      put = put.put, pop = pop.pop, peek = pop.peek, heartbeat = finish.heartbeat, complete = finish.complete,
      fail = finish.fail, retry = finish.retry, timeout = finish.timeout, cancel = finish.cancel,
        unfail = finish.unfail, hand_back = finish.hand_back,
      priority = change.priority, depend = change.depend, log = change.log, track = change.track,
      add_tags = change.add_tags, remove_tags = change.remove_tags, pause = change.pause, recur = recur.recur,
        unrecur = recur.unrecur, length = read.length,
      jobs = read.jobs, get = job.load,
    })
  end)
end
