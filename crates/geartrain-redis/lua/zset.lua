-- Sorted sets: written once for many commands, and always before they are read.

function zset.add(at, score, member)
  local changes = pending[at]
  if not changes then
    changes = {}
    pending[at] = changes
  end
  changes[member] = score
end

function zset.remove(at, member)
  local changes = pending[at]
  if not changes then
    changes = {}
    pending[at] = changes
  end
  changes[member] = false
end

-- Writes what is pending for one key.
function zset.settle(at)
  local changes = pending[at]
  if not changes then return end
  pending[at] = nil
  local added, removed, adds, removes = {}, {}, 0, 0
  for member, score in pairs(changes) do
    if score then
      added[adds + 1] = score
      added[adds + 2] = member
      adds = adds + 2
    else
      removes = removes + 1
      removed[removes] = member
    end
  end
  if adds > 0 then in_parts(added, 'ZADD', at) end
  if removes > 0 then in_parts(removed, 'ZREM', at) end
end

-- Asks a sorted set.
function zset.ask(command, at, ...)
  if pending[at] then zset.settle(at) end
  return call(command, at, ...)
end

-- The score of one member, which may still be pending; none if it is not there.
function zset.score(at, member)
  local changes = pending[at]
  if changes and changes[member] ~= nil then return changes[member] or nil end
  local score = call('ZSCORE', at, member)
  return score and tonumber(score) or nil
end
