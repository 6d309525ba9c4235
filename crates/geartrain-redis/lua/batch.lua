-- Batches: looked through as a whole before anything is done, then done command by command.
--
-- Nearly all commands are plain: puts of a new job of which nothing particular is asked, and completions by whoever holds a job. Our driver sends those that follow on
-- each other as a run: what is the same for all of them once, and then a list of what differs, two of them for each. Each is answered as if it had come alone.

local rep = string.rep
local BATCH_MAX = 10000
local MANY = 16 -- commands for which it pays to ask once who hears of them

-- Runs, by what they are called. `begin` tells what is in one; `go` does as many as are plain from a place on, saying in `place` which one is under way, and answers the
-- place of the last; `answer` is what is answered to each of those; and `one` does one that is not as plain as it looked.
local kinds = {
  Puts = {
    begin = function(fields) return { queue = fields[1], klass = fields[2], list = fields[3] } end,
    go = put.run,
    answer = native.answered('Put') .. pack('Created'),
    one = function(run, place)
      local jid, payload = run.list[2 * place - 1], run.list[2 * place]
      return native.answered('Put') .. native.operations.Put({ run.queue, jid, run.klass, payload, 0, [11] = 'Keep', [12] = 'Refuse' })
    end,
  },
  Completes = {
    begin = function(fields) return { list = fields[1] } end,
    go = finish.run,
    answer = native.answered('Complete') .. pack('Complete'),
    one = function(run, place)
      local jid, token = run.list[2 * place - 1], run.list[2 * place]
      return native.answered('Complete') .. native.operations.Complete({ jid, { Token = token } })
    end,
  },
}

-- What a run consists of.
local function run_of(name, fields)
  local run = kinds[name].begin(fields)
  if type(run.list) ~= 'table' or #run.list % 2 ~= 0 then complain('in ' .. name .. ' there are two texts for each') end
  run.kind, run.count, run.place, run.answered = kinds[name], #run.list / 2, 0, 0
  return run
end

-- Looks through a batch: for each call its name, and its fields or the run that it is; and how many commands it is in all.
local function look_through(calls)
  local names, fields, runs, count = {}, {}, {}, 0
  for place = 1, #calls do
    local name, given = native.variant(calls[place][2])
    if not native.operations[name] and not kinds[name] then complain('there is no command ' .. tostring(name)) end
    if given ~= nil and type(given) ~= 'table' then complain('the fields of ' .. name .. ' are no list') end
    names[place], fields[place] = name, given or {}
    if kinds[name] then runs[place] = run_of(name, fields[place]) end
    count = count + (runs[place] and runs[place].count or 1)
  end
  if count > BATCH_MAX then complain('a batch has at most ' .. BATCH_MAX .. ' commands, this one has ' .. count) end
  return names, fields, runs, count
end

-- Does one command after the other, and answers the reply, in pieces.
function batch.run(calls)
  local names, fields, runs, count = look_through(calls)
  local pieces, last = { packed_head(count, 144, 220) }, 1
  local place, run = 0, nil -- which call is under way, and which run
  known.many = count >= MANY

  local function answer(piece)
    last = last + 1
    pieces[last] = piece
  end
  -- Answers what was done of the run up to a place.
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
    -- What was seen for all of it is true as long as nothing else is done.
    run, known.alone = nil, nil
  end
  local function do_any(name, given)
    known.place = place
    local reply = native.operations[name](given)
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
  -- What is refused is answered, and the next one is done.
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
