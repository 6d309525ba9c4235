-- Batches: read as a whole before anything is done, then done command by command.
--
-- Nearly all commands are plain: puts of a new job of which nothing particular is asked, and completions by whoever holds a job. Our driver writes these in one
-- form, in which names have lengths of two bytes and payloads of four, so that one look reads all there is: Redis's library for MessagePack makes three tables
-- of each command, which takes three times as long. Whatever is written in another way is left to that library, command by command.

local byte, sub, rep, read_fields = string.byte, string.sub, string.rep, struct.unpack
local BATCH_MAX = 10000
local MANY = 16 -- commands for which it pays to ask once who hears of them

-- `[1, {"Batch":`, without how many there are.
local HEAD = '\146\1\129\165Batch'

-- A list of two, of which the first is a double.
local AT_A_MOMENT = 0x92cb
-- What is the same in all plain puts and completions: names, marks of texts whose lengths follow, and what is not asked.
local PUT, PUT_REST = '\129\163Put\157\218', '\203\0\0\0\0\0\0\0\0\192\192\192\144\192\164Keep\166Refuse\192'
local COMPLETE, TOKEN, COMPLETE_REST = '\129\168Complete\150\218', '\129\165Token\218', '\192\192\192\192'
local NAME, PAYLOAD = 218, 219
local PUT_FORM = '>Hdc' .. #PUT .. 'Hc0BHc0BHc0BI4c0c' .. #PUT_REST
local COMPLETE_FORM = '>Hdc' .. #COMPLETE .. 'Hc0c' .. #TOKEN .. 'Hc0c' .. #COMPLETE_REST
-- By which letter of its name the next command may be one more of the same, and where that is.
local LETTER_OF_PUT, LETTER_OF_COMPLETE = byte('u'), byte('m')
local AT_PUT, AT_COMPLETE = 13, 14

-- What is read: for each place the moment and, if it is no plain command, its name and its fields. Plain ones that follow on each other are a run: at its first place are
-- its name and its last place, and at each what the command consists of.
local function empty(count)
  return { count = count, moments = {}, names = {}, fields = {}, lasts = {}, jids = {}, queues = {}, klasses = {}, payloads = {}, tokens = {} }
end

-- Each of these reads all commands of one kind that begin somewhere, and answers the place behind them and where the next one begins.

local function read_puts(of, place, bytes, at)
  local moments, jids, queues, klasses, payloads = of.moments, of.jids, of.queues, of.klasses, of.payloads
  local first, behind_all = place, of.count + 1
  if behind_all > place + ARGUMENTS_MAX then behind_all = place + ARGUMENTS_MAX end
  repeat
    local head, moment, put, queue, mark, jid, mark_2, klass, mark_3, payload, rest, behind = read_fields(PUT_FORM, bytes, at)
    if head ~= AT_A_MOMENT or put ~= PUT or mark ~= NAME or mark_2 ~= NAME or mark_3 ~= PAYLOAD or rest ~= PUT_REST then break end
    moments[place], jids[place], queues[place], klasses[place], payloads[place] = moment, jid, queue, klass, payload
    place, at = place + 1, behind
  until place == behind_all or byte(bytes, at + AT_PUT) ~= LETTER_OF_PUT
  of.names[first], of.lasts[first] = 'Put', place - 1
  return place, at
end

local function read_completes(of, place, bytes, at)
  local moments, jids, tokens = of.moments, of.jids, of.tokens
  local first, behind_all = place, of.count + 1
  if behind_all > place + ARGUMENTS_MAX then behind_all = place + ARGUMENTS_MAX end
  repeat
    local head, moment, complete, jid, holder, token, rest, behind = read_fields(COMPLETE_FORM, bytes, at)
    if head ~= AT_A_MOMENT or complete ~= COMPLETE or holder ~= TOKEN or rest ~= COMPLETE_REST then break end
    moments[place], jids[place], tokens[place] = moment, jid, token
    place, at = place + 1, behind
  until place == behind_all or byte(bytes, at + AT_COMPLETE) ~= LETTER_OF_COMPLETE
  of.names[first], of.lasts[first] = 'Complete', place - 1
  return place, at
end

local function add(of, place, called)
  local name, fields = native.variant(called[2])
  if not native.operations[name] then complain('there is no command ' .. tostring(name)) end
  if fields ~= nil and type(fields) ~= 'table' then complain('the fields of ' .. name .. ' are no list') end
  of.moments[place], of.names[place], of.fields[place], of.lasts[place] = called[1], name, fields or {}, nil
end

local function read_any(of, place, bytes, at)
  local behind, called = cmsgpack.unpack_one(bytes, at - 1)
  add(of, place, called)
  return place + 1, behind < 0 and #bytes + 1 or behind + 1
end

-- Who reads a command, by the second and the third letter of its name.
local quick = { [117 * 256 + 116] = read_puts, [111 * 256 + 109] = read_completes }

-- How many commands there are, and where the first one begins.
local function length_of(bytes)
  local head, high, low = byte(bytes, #HEAD + 1, #HEAD + 3)
  if head >= 144 and head < 160 then return head - 144, #HEAD + 2 end
  if head == 220 then return high * 256 + low, #HEAD + 4 end
  return BATCH_MAX + 1
end

local function read_all(bytes)
  local count, at = length_of(bytes)
  if count > BATCH_MAX then return nil end
  local of, place = empty(count), 1
  while place <= count do
    local second, third = byte(bytes, at + 13, at + 14)
    local read, before = third and quick[second * 256 + third], place
    if read then place, at = read(of, place, bytes, at) end
    if place == before then place, at = read_any(of, place, bytes, at) end
  end
  return at == #bytes + 1 and of or nil
end

-- Reads a batch; none if it is none, or not one that our driver would write.
function batch.read(bytes)
  if sub(bytes, 1, #HEAD) ~= HEAD then return nil end
  local done, of = pcall(read_all, bytes)
  return done and of or nil
end

-- The same of calls that Redis's library has read.
function batch.of(calls)
  if #calls > BATCH_MAX then complain('a batch has at most ' .. BATCH_MAX .. ' commands, this one has ' .. #calls) end
  local of = empty(#calls)
  for place = 1, #calls do add(of, place, calls[place]) end
  return of
end

-- Doing them --------------------------------------------------------------------------------------------------------------------------------------------

-- Runs of plain commands. `go` does as many as are plain, saying in `of.place` which is under way, and answers the place of the last one; `answer` is what is answered
-- to each of those; and `one` does one that is not as plain as it looked.
local runs = {
  Put = { go = put.run, answer = native.answered('Put') .. pack('Created') },
  Complete = { go = finish.run, answer = native.answered('Complete') .. pack('Complete') },
}

function runs.Put.one(of, place)
  local fields = { of.queues[place], of.jids[place], of.klasses[place], of.payloads[place], 0, [11] = 'Keep', [12] = 'Refuse' }
  return native.answered('Put') .. native.operations.Put(fields)
end

function runs.Complete.one(of, place)
  return native.answered('Complete') .. native.operations.Complete({ of.jids[place], { Token = of.tokens[place] } })
end

-- Does one command after the other, and answers the reply.
function batch.run(of)
  local count, operations = of.count, native.operations
  local moments, names, fields, lasts = of.moments, of.names, of.fields, of.lasts
  local pieces, last = { packed_head(count, 144, 220) }, 1
  -- The run under way, its last place, the first that is not answered, and whether it was begun before.
  local run, till, first, is_rest
  known.many = count >= MANY

  local function answer(piece)
    last = last + 1
    pieces[last] = piece
  end
  -- Answers what was done of the run up to a place.
  local function answer_run(done)
    if done >= first then answer(rep(run.answer, done - first + 1)) end
  end
  local function go_through_run()
    while of.place < till do
      first = of.place + 1
      local done = run.go(of, first, till, is_rest)
      answer_run(done)
      of.place, is_rest = done, true
      if done < till then
        local place = done + 1
        of.place, first, now = place, place + 1, moments[place]
        answer(run.one(of, place))
      end
    end
    run = nil
  end
  local function do_any(name, given)
    known.place = of.place
    local reply = operations[name](given)
    answer(native.answered(name))
    if type(reply) == 'string' then return answer(reply) end
    -- Large answers are joined only once.
    for at = 1, #reply do pieces[last + at] = reply[at] end
    last = last + #reply
  end
  local function go_on()
    if run then go_through_run() end
    while of.place < count do
      local place = of.place + 1
      till = lasts[place]
      if till then
        run, is_rest = runs[names[place]], false
        go_through_run()
      else
        of.place, now = place, moments[place] or moment()
        do_any(names[place], fields[place])
      end
    end
  end
  of.place = 0
  -- What is refused is answered, and the next one is done.
  while of.place < count do
    local done, reply = pcall(go_on)
    if not done then
      if run then answer_run(of.place - 1) end
      answer(native.refused(reply))
    end
  end
  return table.concat(pieces)
end
