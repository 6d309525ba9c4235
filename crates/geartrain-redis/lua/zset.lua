-- Sorted sets: a write buffer, flushed once for many commands and always before a read.
--
-- A key's pending changes are a list of members to add, each after its score, or one of members to remove, or
-- how many of the highest to remove. A change of another kind flushes the list first, which keeps the order
-- of changes to a member without a search.

-- Redis stores up to 128 members in one listpack and scans it from the start for each insertion, parsing
-- numbers from text: with 100 members that takes up to 5 µs. A member longer than 64 bytes makes it switch to
-- a skip list, which takes a tenth. So before many insertions such a member is added and removed again. No
-- name equals it, because names contain no NUL.
local MANY = 16
local LONG = string.rep('\0', 65)

local function begin_list(at, kind)
  if pending[at] then zset.flush(at) end
  local changes = { kind = kind, count = 0 }
  pending[at] = changes
  return changes
end

-- The score is a number or, if many members have it, its exact text.
function zset.add(at, score, member)
  local changes = pending[at]
  if not changes or changes.kind ~= 'add' then changes = begin_list(at, 'add') end
  local count = changes.count + 2
  changes[count - 1], changes[count], changes.count = score, member, count
  if count >= ARGUMENTS_MAX then zset.flush(at) end
end

function zset.remove(at, member)
  local changes = pending[at]
  if not changes or changes.kind ~= 'remove' then changes = begin_list(at, 'remove') end
  local count = changes.count + 1
  changes[count], changes.count = member, count
  if count >= ARGUMENTS_MAX then zset.flush(at) end
end

-- Removes a member that was there before all pending additions, so that additions and such removals can
-- alternate.
function zset.remove_earlier(at, member)
  local changes = pending[at]
  if not changes or changes.kind ~= 'add' then return zset.remove(at, member) end
  local earlier = changes.earlier or {}
  changes.earlier = earlier
  earlier[#earlier + 1] = member
  if #earlier >= ARGUMENTS_MAX then zset.flush(at) end
end

-- Adds or removes a member at two keys, which share one list as long as no other change comes for either.

local function begin_common_list(one, other, kind)
  zset.flush(one)
  zset.flush(other)
  local changes = { kind = kind, count = 0 }
  pending[one], pending[other] = changes, changes
  return changes
end

function zset.add_to_both(one, other, score, member)
  local changes = pending[one]
  if not changes or changes ~= pending[other] or changes.kind ~= 'add to both' then
    changes = begin_common_list(one, other, 'add to both')
  end
  local count = changes.count + 2
  changes[count - 1], changes[count], changes.count = score, member, count
  if count >= ARGUMENTS_MAX then begin_common_list(one, other, 'add to both') end
end

function zset.remove_from_both(one, other, member)
  local changes = pending[one]
  if not changes or changes ~= pending[other] or changes.kind ~= 'remove from both' then
    changes = begin_common_list(one, other, 'remove from both')
  end
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

-- Fails if a key has another type. A command checks the keys that it will write before its first write,
-- because Redis does not roll back after an error. Each key is checked once per call; keys that are read
-- anyway need no check.
function zset.check_type(at)
  if cache.typed[at] then return end
  call('ZCARD', at)
  cache.typed[at] = true
end

-- Writes the pending changes of one key.
function zset.flush(at)
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

-- Reads from a sorted set.
function zset.read(command, at, ...)
  if pending[at] then zset.flush(at) end
  return call(command, at, ...)
end

-- The score of a member, or nil.
function zset.score(at, member)
  local score = zset.read('ZSCORE', at, member)
  return score and tonumber(score) or nil
end
