-- Sorted sets: written once for many commands, and always before they are read.
--
-- What is pending for a key is a list of members to put in, each behind its score, or one of members to take out, or how many of the highest go. When another
-- kind comes, what came before it is written first; so the order of changes to a member is kept, and nobody has to look for it in a list.

-- Redis keeps up to 128 members in one piece of memory and reads it from its beginning for each that comes in, numbers as text: with 100 that takes up to 5 µs
-- each. A member that is too long for that makes it choose the other form, which takes a tenth, so where many come in such a one comes in first and goes again.
-- Nobody's name is like it, because names have no NUL.
local MANY = 40
local LONG = string.rep('\0', 65)

local function begin_list(at, kind)
  if pending[at] then zset.settle(at) end
  local changes = { kind = kind, count = 0 }
  pending[at] = changes
  return changes
end

-- The score is a number or, if many have it, its exact text.
function zset.add(at, score, member)
  local changes = pending[at]
  if not changes or changes.kind ~= 'add' then changes = begin_list(at, 'add') end
  local count = changes.count + 2
  changes[count - 1], changes[count], changes.count = score, member, count
  if count >= ARGUMENTS_MAX then zset.settle(at) end
end

function zset.remove(at, member)
  local changes = pending[at]
  if not changes or changes.kind ~= 'remove' then changes = begin_list(at, 'remove') end
  local count = changes.count + 1
  changes[count], changes.count = member, count
  if count >= ARGUMENTS_MAX then zset.settle(at) end
end

-- Removes a member that was there before all that is pending came in, so that adding others and removing those can take turns.
function zset.remove_earlier(at, member)
  local changes = pending[at]
  if not changes or changes.kind ~= 'add' then return zset.remove(at, member) end
  local earlier = changes.earlier or {}
  changes.earlier = earlier
  earlier[#earlier + 1] = member
  if #earlier >= ARGUMENTS_MAX then zset.settle(at) end
end

-- Adds or removes a member at two keys at once, which have one list in common as long as nothing else comes for either.

local function begin_common_list(one, other, kind)
  zset.settle(one)
  zset.settle(other)
  local changes = { kind = kind, count = 0 }
  pending[one], pending[other] = changes, changes
  return changes
end

function zset.add_to_both(one, other, score, member)
  local changes = pending[one]
  if not changes or changes ~= pending[other] or changes.kind ~= 'add to both' then changes = begin_common_list(one, other, 'add to both') end
  local count = changes.count + 2
  changes[count - 1], changes[count], changes.count = score, member, count
  if count >= ARGUMENTS_MAX then begin_common_list(one, other, 'add to both') end
end

function zset.remove_from_both(one, other, member)
  local changes = pending[one]
  if not changes or changes ~= pending[other] or changes.kind ~= 'remove from both' then changes = begin_common_list(one, other, 'remove from both') end
  local count = changes.count + 1
  changes[count], changes.count = member, count
  if count >= ARGUMENTS_MAX then begin_common_list(one, other, 'remove from both') end
end

-- Removes the member with the highest score.
function zset.remove_highest(at)
  local changes = pending[at]
  if not changes or changes.kind ~= 'highest' then changes = begin_list(at, 'highest') end
  changes.count = changes.count + 1
end

-- Fails if a key holds a value of another type. What a command will write is looked at before its first
-- write, because what was written before an error stays written. Each key is looked at once in a call, and
-- one that is read anyway need not be.
function zset.sure(at)
  if known.typed[at] then return end
  call('ZCARD', at)
  known.typed[at] = true
end

-- Writes what is pending for one key.
function zset.settle(at)
  local changes = pending[at]
  if not changes then return end
  pending[at] = nil
  local kind, count, earlier = changes.kind, changes.count, changes.earlier
  if earlier then call('ZREM', at, unpack(earlier)) end
  if count == 0 then return end
  if kind == 'highest' then
    call('ZREMRANGEBYRANK', at, -count, -1)
  elseif kind == 'remove' or kind == 'remove from both' then
    call('ZREM', at, unpack(changes, 1, count))
  elseif count < 2 * MANY then
    call('ZADD', at, unpack(changes, 1, count))
  else
    call('ZADD', at, 0, LONG, unpack(changes, 1, count))
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
