-- Those who wait for something to pop: each wait of a process sleeps on its queues, and one is woken for each job that comes in.
-- Others only want to be told: whatever comes in, all of them are, and one message is enough for all of a process.

local SLEEP_SECONDS = 5 -- after its last wait a process is forgotten

-- The clock of Redis, because sleepers are not timed by what callers say.
local function clock()
  local time = call('TIME')
  return time[1] + time[2] / 1e6
end

-- A wait as text: those of one process that came together sort by their numbers.
local function wait_text(process, number)
  return string.format('%016.0f ', number) .. process
end

-- Remembers that a process sleeps on these queues.
function sleep.sleep(process, number, queues)
  local till, text = clock() + SLEEP_SECONDS, wait_text(process, number)
  for _, queue in ipairs(queues) do zset.add(key.sleep .. queue, till, text) end
  local waits = key.waits .. process
  call('HSET', waits, text, pack(queues))
  call('EXPIRE', waits, 2 * SLEEP_SECONDS)
end

-- A wait is over: it sleeps nowhere any more.
local function end_wait(process, text)
  local waits = key.waits .. process
  local stored = call('HGET', waits, text)
  if not stored then return end
  call('HDEL', waits, text)
  for _, queue in ipairs(cmsgpack.unpack(stored)) do zset.remove(key.sleep .. queue, text) end
end

function sleep.awake(process, number)
  end_wait(process, wait_text(process, number))
end

-- Remembers that a process wants to be told when there is something in these queues. That it no longer does is not said: at worst it is told once in vain.
function sleep.watch(process, queues)
  for _, queue in ipairs(queues) do
    -- All waits of one call are of one process.
    if not known.watched[queue] then
      known.watched[queue] = true
      call('SADD', key.watch .. queue, process)
      call('EXPIRE', key.watch .. queue, SLEEP_SECONDS)
    end
  end
end

-- Wakes one wait of a queue for each job that came in, those that asked longest ago first. Where nobody hears the process is gone, and the next one is woken
-- in its stead. On a Cluster the count of those who heard is of one node, so that there nobody is passed over.
local function wake_sleepers(queue, at, count)
  call('ZREMRANGEBYSCORE', at, '-inf', exact(clock()))
  while count > 0 do
    local text = zset.ask('ZRANGE', at, 0, 0)[1]
    if not text then break end
    local process = text:match('^%d+ (.*)$')
    zset.remove(at, text)
    end_wait(process, text)
    local heard = call('PUBLISH', key.to .. process, pack({ Wake = queue }))
    if heard > 0 or sleep.in_cluster() then count = count - 1 end
  end
end

-- Tells all who want to be told. They ask again, and say so again if there is nothing after all.
local function tell_watchers(queue, at)
  for _, process in ipairs(call('SMEMBERS', at)) do call('PUBLISH', key.to .. process, pack({ Ready = queue })) end
  call('DEL', at)
end

-- Those who sleep are woken before others are told, so that a process which hears both asks for its pops first.
function sleep.wake()
  for queue, count in pairs(out.woken) do
    local asleep, watched = key.sleep .. queue, key.watch .. queue
    zset.settle(asleep)
    if call('EXISTS', asleep, watched) > 0 then
      wake_sleepers(queue, asleep, count)
      tell_watchers(queue, watched)
    end
  end
  out.woken = {}
  for at in pairs(pending) do zset.settle(at) end
end

function sleep.in_cluster()
  if known.cluster == nil then
    local asked, info = pcall(call, 'INFO', 'cluster')
    known.cluster = asked and info:find('cluster_enabled:1', 1, true) ~= nil
  end
  return known.cluster
end
