-- Parked pops: each is in a line for each of its queues, and one of a line is woken for each job that becomes
-- ready. Pops that are restricted to the same klasses of a queue have a line of their own.
--
-- Waits for readiness are sets of processes: all are notified, with one message per process.

local PARK_SECONDS = 5 -- without another request a parked pop expires
parked.seconds = PARK_SECONDS

-- A client of the JSON library waits with BLPOP, on a list. In the place of its process stands this and the name of
-- the list.
local LIST = 'list:'

-- The clock of Redis, because parked pops do not expire by the callers' time.
local function clock()
  local time = call('TIME')
  return time[1] + time[2] / 1e6
end

-- A parked pop as text: pops of one process with the same score sort by their numbers.
local function pop_text(process, number)
  return string.format('%016.0f ', number) .. process
end

-- The line of pops that are restricted to some klasses of a queue. No name contains NUL.
function parked.line(queue, group)
  if not cache.lined[queue .. '\0' .. group] then
    cache.lined[queue .. '\0' .. group] = true
    call('SADD', key.lines .. queue, group)
    call('EXPIRE', key.lines .. queue, 2 * PARK_SECONDS)
  end
  return queue .. '\0' .. group
end

-- Parks a pop in its lines: queues, or lines of queues.
function parked.park(process, number, lines)
  local till, text = clock() + PARK_SECONDS, pop_text(process, number)
  for _, line in ipairs(lines) do zset.add(key.parked .. line, till, text) end
  local waits = key.parked_of .. process
  call('HSET', waits, text, pack(lines))
  call('EXPIRE', waits, 2 * PARK_SECONDS)
end

-- Removes a parked pop from its queues.
local function remove_pop(process, text)
  local waits = key.parked_of .. process
  local stored = call('HGET', waits, text)
  if not stored then return end
  call('HDEL', waits, text)
  for _, line in ipairs(cmsgpack.unpack(stored)) do zset.remove(key.parked .. line, text) end
end

function parked.unpark(process, number)
  remove_pop(process, pop_text(process, number))
end

-- Records a process that waits for readiness of these queues. It is never removed: at worst one notice is in
-- vain.
function parked.watch(process, queues)
  for _, queue in ipairs(queues) do
    -- All waits of one call are of one process.
    if not cache.watched[queue] then
      cache.watched[queue] = true
      call('SADD', key.watch .. queue, process)
      call('EXPIRE', key.watch .. queue, PARK_SECONDS)
    end
  end
end

-- What a client of the JSON library parks its pop as: the same pop of the same worker always has the same list, so
-- that no list is left behind when it is repeated.
function parked.list_process(of)
  local lines = table.concat(klasses.lines(of), '\n')
  return LIST .. of.worker .. ':' .. redis.sha1hex(lines)
end

-- The list of such a process.
function parked.list_of(process)
  return key.woken .. process:sub(#LIST + 1)
end

-- Pushes to a list. Clients take entries away as they wake, and an entry that none takes goes by itself.
function parked.push(list, value)
  call('RPUSH', list, value)
  call('EXPIRE', list, 2 * PARK_SECONDS)
end

-- Wakes a process. Returns whether it has received the message, as far as that is known.
local function wake_process(process, queue)
  if process:sub(1, #LIST) == LIST then
    parked.push(parked.list_of(process), queue)
    return true
  end
  return call('PUBLISH', key.to .. process, pack({ Wake = queue })) > 0 or parked.in_cluster()
end

-- Wakes one parked pop of a queue for each ready job, the longest parked first. If nothing receives the
-- message, the process is gone and the next pop is woken. On a Cluster PUBLISH counts receivers on one node
-- only, so there every message counts as received.
local function wake_pops(queue, at, count)
  call('ZREMRANGEBYSCORE', at, '-inf', exact(clock()))
  while count > 0 do
    local text = zset.read('ZRANGE', at, 0, 0)[1]
    if not text then break end
    local process = text:match('^%d+ (.*)$')
    zset.remove(at, text)
    remove_pop(process, text)
    if wake_process(process, queue) then count = count - 1 end
  end
end

-- Notifies all processes that wait for readiness. They check, and record their wait again if they find
-- nothing.
local function notify_watchers(queue, at)
  for _, process in ipairs(call('SMEMBERS', at)) do
    call('PUBLISH', key.to .. process, pack({ Ready = queue }))
  end
  call('DEL', at)
end

-- Parked pops are woken before readiness is announced, so that a process that receives both sends its pops
-- first.
function parked.wake()
  for queue, count in pairs(out.ready) do
    local pops, watched, lines = key.parked .. queue, key.watch .. queue, key.lines .. queue
    zset.flush(pops)
    if call('EXISTS', pops, watched, lines) > 0 then
      wake_pops(queue, pops, count)
      for _, group in ipairs(call('SMEMBERS', lines)) do
        zset.flush(pops .. '\0' .. group)
        wake_pops(queue, pops .. '\0' .. group, count)
      end
      notify_watchers(queue, watched)
    end
  end
  out.ready = {}
  for at in pairs(pending) do zset.flush(at) end
end

function parked.in_cluster()
  if cache.cluster == nil then
    local asked, info = pcall(call, 'INFO', 'cluster')
    cache.cluster = asked and info:find('cluster_enabled:1', 1, true) ~= nil
  end
  return cache.cluster
end
