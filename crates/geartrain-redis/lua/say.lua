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

function say.event(name, fields)
  local events = out.events
  events[#events + 1] = { [name] = fields }
end

-- Whether a job is tracked. Nearly always none is.
function say.is_tracked(jid)
  if known.tracked == nil then known.tracked = call('ZCARD', key.tracked) > 0 end
  return known.tracked and zset.score(key.tracked, jid) ~= nil
end

-- Tells those who track the job; the channels are named like what is told, in small letters.
function say.milestone(jid, what)
  if known.tracked ~= false and say.is_tracked(jid) then
    say.on(key.channel .. what:lower(), jid)
    if say.listening() then say.event('Milestone', { jid = jid, what = what }) end
  end
end
