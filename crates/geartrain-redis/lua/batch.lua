-- Batches: decoded as a whole before anything is executed, then executed command by command.
--
-- Nearly all commands are plain: puts of a new job without options, and completions by the holder. Our driver
-- sends consecutive ones as a run: what they have in common once, and then a list of what differs, two items
-- each. Each is answered as if it had come alone.

local rep = string.rep
local BATCH_MAX = 10000
local MANY = 16 -- from so many commands on it pays to check for subscribers

-- Kinds of runs. `begin` decodes one; `go` executes as many as are plain from an index on, keeps the current
-- index in `place`, and returns the last; `answer` is the answer to each of those; `one` executes one that is
-- not as plain as it looked.
local kinds = {
  Puts = {
    begin = function(fields) return { queue = fields[1], klass = fields[2], list = fields[3] } end,
    go = put.run,
    answer = native.answered('Put') .. pack('Created'),
    one = function(run, place)
      local jid, payload = run.list[2 * place - 1], run.list[2 * place]
      return native.answered('Put') .. native.operations.Put({ run.queue, jid, run.klass, payload, 0,
        [11] = 'Keep', [12] = 'Refuse' })
    end,
  },
  Completes = {
    begin = function(fields) return { list = fields[1] } end,
    go = finish.run,
    answer = native.answered('Complete') .. pack('Complete'),
    one = function(run, place)
      local jid, token = run.list[2 * place - 1], run.list[2 * place]
      return native.answered('Complete') .. native.complete({ jid, { Token = token } })
    end,
  },
}

-- The content of a run.
local function run_of(name, fields)
  local run = kinds[name].begin(fields)
  if type(run.list) ~= 'table' or #run.list % 2 ~= 0 then
    fail_with('in ' .. name .. ' there are two texts for each')
  end
  run.kind, run.count, run.place, run.answered = kinds[name], #run.list / 2, 0, 0
  return run
end

-- Decodes a batch: for each call its name, and its fields or its run; and the number of commands.
local function decode(calls)
  local names, fields, runs, count = {}, {}, {}, 0
  for place = 1, #calls do
    local name, given = native.variant(calls[place][2])
    if not native.operations[name] and not kinds[name] then
      fail_with('there is no command ' .. tostring(name))
    end
    if given ~= nil and type(given) ~= 'table' then fail_with('the fields of ' .. name .. ' are no list') end
    names[place], fields[place] = name, given or {}
    if kinds[name] then runs[place] = run_of(name, fields[place]) end
    count = count + (runs[place] and runs[place].count or 1)
  end
  if count > BATCH_MAX then
    fail_with('a batch has at most ' .. BATCH_MAX .. ' commands, this one has ' .. count)
  end
  return names, fields, runs, count
end

-- Executes one command after the other, and returns the reply in pieces.
function batch.run(calls)
  local names, fields, runs, count = decode(calls)
  local pieces, last = { packed_head(count, 144, 220) }, 1
  local place, run = 0, nil -- the current call, and the current run
  cache.many, cache.calls = count >= MANY, calls

  local function answer(piece)
    last = last + 1
    pieces[last] = piece
  end
  -- Answers the commands of a run up to an index.
  local function answer_run(done)
    if done > run.answered then answer(rep(run.kind.answer, done - run.answered)) end
  end
  local function go_through_run()
    while run.place < run.count do
      local done = run.kind.go(run, run.place + 1)
      answer_run(done)
      run.place, run.answered = done, done
      if done < run.count then
        run.place, run.answered = done + 1, done + 1
        answer(run.kind.one(run, done + 1))
      end
    end
    -- What was checked for the whole run holds as long as nothing else is executed.
    run, cache.alone = nil, nil
  end
  local function do_any(name, given)
    cache.place = place
    local reply = native.operations[name](given)
    if cache.behind then policies.apply() end
    answer(native.answered(name))
    if type(reply) == 'string' then return answer(reply) end
    for at = 1, #reply do pieces[last + at] = reply[at] end
    last = last + #reply
  end
  local function go_on()
    if run then go_through_run() end
    while place < #calls do
      place = place + 1
      now = calls[place][1] or moment()
      run = runs[place]
      if run then go_through_run() else do_any(names[place], fields[place]) end
    end
  end
  -- A refusal is an answer, and the next command is executed.
  while place < #calls or run do
    local done, reply = pcall(go_on)
    if not done then
      if run then
        answer_run(run.place - 1)
        run.answered = run.place
      end
      answer(native.refused(reply))
    end
  end
  return pieces
end
