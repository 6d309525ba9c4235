-- Those who wait for something to pop: each process sleeps on its queues, and one is woken for each job that comes in.

local SLEEP_SECONDS = 5 -- after its last wait a process is forgotten

-- The clock of Redis, because sleepers are not timed by what callers say.
local function clock()
  local time = call('TIME')
  return time[1] + time[2] / 1e6
end

-- Remembers that a process sleeps on these queues.
function sleep.sleep(process, number, queues)
  local till = clock() + SLEEP_SECONDS
  for _, queue in ipairs(queues) do zset.add(key.sleep .. queue, till, process) end
  local waits = key.waits .. process
  call('HSET', waits, exact(number), pack(queues))
  call('EXPIRE', waits, 2 * SLEEP_SECONDS)
end

-- A wait of a process is over. It sleeps on where another of its waits does.
function sleep.awake(process, number)
  local waits = key.waits .. process
  local stored = call('HGET', waits, exact(number))
  if not stored then return end
  call('HDEL', waits, exact(number))
  local others = {}
  for _, other in ipairs(call('HVALS', waits)) do
    for _, queue in ipairs(cmsgpack.unpack(other)) do others[queue] = true end
  end
  for _, queue in ipairs(cmsgpack.unpack(stored)) do
    if not others[queue] then zset.remove(key.sleep .. queue, process) end
  end
end

-- Wakes one sleeper of a queue for each job that came in. One that nobody hears for is gone, and the next one is woken in its stead.
-- On a Cluster the count of those who heard is of one node, so that there nobody is passed over.
function sleep.wake()
  for queue, count in pairs(out.woken) do
    local at = key.sleep .. queue
    if call('EXISTS', at) == 1 then
      call('ZREMRANGEBYSCORE', at, '-inf', exact(clock()))
      while count > 0 do
        -- Who came first has the earliest end.
        local process = call('ZRANGE', at, 0, 0)[1]
        if not process then break end
        call('ZREM', at, process)
        local heard = call('PUBLISH', key.to .. process, pack({ Wake = queue }))
        if heard > 0 or sleep.in_cluster() then count = count - 1 end
      end
    end
  end
  out.woken = {}
end

function sleep.in_cluster()
  if known.cluster == nil then
    local asked, info = pcall(call, 'INFO', 'cluster')
    known.cluster = asked and info:find('cluster_enabled:1', 1, true) ~= nil
  end
  return known.cluster
end
