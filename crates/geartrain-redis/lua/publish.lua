-- Publishing: messages on Qless's channels, and events.

-- Queues a message for one of Qless's channels.
function publish.message(channel, text)
  local count = out.count
  out.ql[count + 1] = channel
  out.ql[count + 2] = text
  out.count = count + 2
end

function publish.log(text)
  publish.message(key.log, text)
end

-- Whether the log channel may have subscribers. Replicas publish everything again, also one that reconnects
-- and catches up, and so do the other nodes of a Cluster.
local function log_has_subscribers()
  local named, patterns = redis.pcall('PUBSUB', 'NUMSUB', key.log), redis.pcall('PUBSUB', 'NUMPAT')
  if type(named) ~= 'table' or named[2] ~= 0 or patterns ~= 0 then return true end
  local replication = redis.pcall('INFO', 'replication')
  return type(replication) ~= 'string' or not replication:find('repl_backlog_active:0', 1, true)
    or parked.in_cluster()
end

-- The same for calls with many jobs. The check costs as much as ten messages, so calls with few do without
-- it.
function publish.has_subscribers()
  if cache.subscribed == nil then cache.subscribed = not cache.many or log_has_subscribers() end
  return cache.subscribed
end

function publish.lock_lost(jid, worker)
  local text = '{"jid":' .. quote(jid) .. ',"event":"lock_lost","worker":' .. quote_name(worker) .. '}'
  publish.message(key.worker .. worker, text)
  publish.message(key.log, text)
end

-- Whether events have subscribers.
function publish.has_event_subscribers()
  if cache.event_subscribers == nil then cache.event_subscribers = call('GET', key.listen) or false end
  return cache.event_subscribers
end

-- Whether neither Qless's log channel nor events have subscribers, for calls with many jobs.
function publish.has_no_subscribers()
  if cache.unsubscribed == nil then
    cache.unsubscribed = not publish.has_subscribers() and not publish.has_event_subscribers()
  end
  return cache.unsubscribed
end

function publish.event(name, fields)
  local events = out.events
  events[#events + 1] = { [name] = fields }
end

-- Whether any job is tracked. Nearly always none is.
local function has_tracked()
  if cache.tracked == nil then cache.tracked = call('ZCARD', key.tracked) > 0 end
  return cache.tracked
end

function publish.is_tracked(jid)
  return has_tracked() and zset.score(key.tracked, jid) ~= nil
end

-- Whether nothing needs to be published for each of many jobs: no subscribers, and no tracked job.
function publish.is_not_needed()
  if cache.unpublished == nil then cache.unpublished = publish.has_no_subscribers() and not has_tracked() end
  return cache.unpublished
end

-- Publishes a milestone of a tracked job. The channels are the names in lower case.
function publish.milestone(jid, what)
  if publish.is_tracked(jid) then
    publish.message(key.channel .. what:lower(), jid)
    if publish.has_event_subscribers() then publish.event('Milestone', { jid = jid, what = what }) end
  end
end
