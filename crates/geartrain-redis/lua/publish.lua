-- What is told: to Qless's channels, and to those who want to know all that happens.

-- To one of Qless's channels.
function say.on(channel, text)
  local count = out.count
  out.ql[count + 1] = channel
  out.ql[count + 2] = text
  out.count = count + 2
end

function say.log(text)
  say.on(key.log, text)
end

-- Whether somebody may hear what is said on the log. A replica says everything once more, also one that comes back and hears what it missed, and so do the
-- other nodes of a Cluster.
local function is_heard()
  local named, patterns = redis.pcall('PUBSUB', 'NUMSUB', key.log), redis.pcall('PUBSUB', 'NUMPAT')
  if type(named) ~= 'table' or named[2] ~= 0 or patterns ~= 0 then return true end
  local replication = redis.pcall('INFO', 'replication')
  return type(replication) ~= 'string' or not replication:find('repl_backlog_active:0', 1, true) or sleep.in_cluster()
end

-- The same, asked by whoever has something to say for each of many jobs. To ask takes as long as to say ten things, so that who says few does not.
function say.is_heard()
  if known.heard == nil then known.heard = not known.many or is_heard() end
  return known.heard
end

function say.lock_lost(jid, worker)
  local text = '{"jid":' .. quote(jid) .. ',"event":"lock_lost","worker":' .. quote_name(worker) .. '}'
  say.on(key.worker .. worker, text)
  say.on(key.log, text)
end

-- Whether anybody wants to know what happens.
function say.listening()
  if known.listening == nil then known.listening = call('GET', key.listen) or false end
  return known.listening
end

-- Whether nobody wants to know of what happens to each of many jobs, neither in Qless's words nor in ours.
function say.quiet()
  if known.quiet == nil then known.quiet = not say.is_heard() and not say.listening() end
  return known.quiet
end

function say.event(name, fields)
  local events = out.events
  events[#events + 1] = { [name] = fields }
end

-- Whether any job is tracked. Nearly always none is.
local function tracks()
  if known.tracked == nil then known.tracked = call('ZCARD', key.tracked) > 0 end
  return known.tracked
end

function say.is_tracked(jid)
  return tracks() and zset.score(key.tracked, jid) ~= nil
end

-- Whether nothing need be said of what happens to each of many jobs: nobody wants to know, and none is tracked.
function say.is_silent()
  if known.silent == nil then known.silent = say.quiet() and not tracks() end
  return known.silent
end

-- Tells those who track the job; the channels are named like what is told, in small letters.
function say.milestone(jid, what)
  if say.is_tracked(jid) then
    say.on(key.channel .. what:lower(), jid)
    if say.listening() then say.event('Milestone', { jid = jid, what = what }) end
  end
end
