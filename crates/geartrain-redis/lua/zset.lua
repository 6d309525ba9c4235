-- Sorted sets: written once for many commands, and always before they are read.
--
-- What is pending for a key is either a list of members to put in, each behind its score, or one of members to take out. When the other kind comes, what came
-- before it is written first; so the order of changes is kept, and nobody has to look for a member in a list.

-- Redis keeps up to 128 members in one piece of memory and reads it from its beginning for each that comes in, numbers as text: with 100 that takes up to 5 µs
-- each. A member that is too long for that makes it choose the other form, which takes a tenth, so where many come in such a one comes in first and goes again.
-- Nobody's name is like it, because names have no NUL.
local MANY = 40
local LONG = string.rep('\0', 65)

local function begin_list(at, adds)
  if pending[at] then zset.settle(at) end
  local changes = { adds = adds, count = 0 }
  pending[at] = changes
  return changes
end

-- The score is a number or, if many have it, its exact text.
function zset.add(at, score, member)
  local changes = pending[at]
  if not changes or not changes.adds then changes = begin_list(at, true) end
  local count = changes.count + 2
  changes[count - 1], changes[count], changes.count = score, member, count
  if count >= ARGUMENTS_MAX then zset.settle(at) end
end

function zset.remove(at, member)
  local changes = pending[at]
  if not changes or changes.adds then changes = begin_list(at, false) end
  local count = changes.count + 1
  changes[count], changes.count = member, count
  if count >= ARGUMENTS_MAX then zset.settle(at) end
end

-- Writes what is pending for one key.
function zset.settle(at)
  local changes = pending[at]
  if not changes then return end
  pending[at] = nil
  if not changes.adds then
    call('ZREM', at, unpack(changes, 1, changes.count))
  elseif changes.count < 2 * MANY then
    call('ZADD', at, unpack(changes, 1, changes.count))
  else
    call('ZADD', at, 0, LONG, unpack(changes, 1, changes.count))
    call('ZREM', at, LONG)
  end
end

-- Asks a sorted set.
function zset.ask(command, at, ...)
  if pending[at] then zset.settle(at) end
  return call(command, at, ...)
end

-- The score of one member; none if it is not there.
function zset.score(at, member)
  local score = zset.ask('ZSCORE', at, member)
  return score and tonumber(score) or nil
end
