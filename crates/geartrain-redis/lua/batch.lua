-- Batches: read as a whole before anything is done, then done command by command.
--
-- Nearly all commands are plain: puts of a new job of which nothing particular is asked, and completions by whoever holds a job. Our driver writes these in one
-- form, in which names have lengths of two bytes and payloads of four, so that one look reads all there is: Redis's library for MessagePack makes three tables
-- of each command, which takes three times as long. Whatever is written in another way is left to that library, command by command.

local byte, sub, read_fields, match = string.byte, string.sub, struct.unpack, string.match
local BATCH_MAX = 10000
local MANY = 16 -- commands for which it pays to look ahead

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

-- What is read: for each place the moment and the name of a command, and then either its fields or, if it is a plain one, what that consists of.
local function empty(count)
  return { count = count, moments = {}, names = {}, fields = {}, jids = {}, queues = {}, klasses = {}, payloads = {}, tokens = {} }
end

-- Each of these reads a command that begins somewhere, and answers where the next one begins; none if it is not what they read.

local function read_put(of, place, bytes, at)
  local head, moment, put, queue, mark, jid, mark_2, klass, mark_3, payload, rest, behind = read_fields(PUT_FORM, bytes, at)
  if head ~= AT_A_MOMENT or put ~= PUT or mark ~= NAME or mark_2 ~= NAME or mark_3 ~= PAYLOAD or rest ~= PUT_REST then return nil end
  of.moments[place], of.names[place], of.jids[place], of.queues[place], of.klasses[place], of.payloads[place] = moment, 'Put', jid, queue, klass, payload
  return behind
end

local function read_complete(of, place, bytes, at)
  local head, moment, complete, jid, holder, token, rest, behind = read_fields(COMPLETE_FORM, bytes, at)
  if head ~= AT_A_MOMENT or complete ~= COMPLETE or holder ~= TOKEN or rest ~= COMPLETE_REST then return nil end
  of.moments[place], of.names[place], of.jids[place], of.tokens[place] = moment, 'Complete', jid, token
  return behind
end

local function add(of, place, called)
  local name, fields = native.variant(called[2])
  if not native.operations[name] then complain('there is no command ' .. tostring(name)) end
  if fields ~= nil and type(fields) ~= 'table' then complain('the fields of ' .. name .. ' are no list') end
  of.moments[place], of.names[place], of.fields[place] = called[1], name, fields or {}
end

local function read_any(of, place, bytes, at)
  local behind, called = cmsgpack.unpack_one(bytes, at - 1)
  add(of, place, called)
  return behind < 0 and #bytes + 1 or behind + 1
end

-- Who reads a command, by the second and the third letter of its name.
local quick = { [117 * 256 + 116] = read_put, [111 * 256 + 109] = read_complete }

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
  local of = empty(count)
  for place = 1, count do
    local second, third = byte(bytes, at + 13, at + 14)
    local read = third and quick[second * 256 + third]
    at = read and read(of, place, bytes, at) or read_any(of, place, bytes, at)
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

local CREATED = native.answered('Put') .. pack('Created')
local COMPLETED = native.answered('Complete') .. pack('Complete')

-- Plain commands. If one is not as plain as it looked, it is done as any other.
local plain = {}

function plain.Put(of, place)
  local jid, queue, klass, payload = of.jids[place], of.queues[place], of.klasses[place], of.payloads[place]
  check_payload(payload)
  if put.plain(jid, queue, klass, payload) then return CREATED end
  return native.answered('Put') .. native.operations.Put({ queue, jid, klass, payload, 0, [11] = 'Keep', [12] = 'Refuse' })
end

function plain.Complete(of, place)
  local jid, token = of.jids[place], match(of.tokens[place], '^%d+') or ''
  if finish.plain(jid, token) then return COMPLETED end
  return native.answered('Complete') .. native.operations.Complete({ jid, { Token = token } })
end

-- Looks once for all plain commands of one kind that follow on each other from here, if there are many. Answers the place of the last one, or how far it looked.
local function look_ahead(of, place)
  -- What was seen is true as long as nothing else is done.
  known.absent, known.alone = nil, nil
  local names, fields, last = of.names, of.fields, place
  local name = names[place]
  if fields[place] then return place end
  while names[last + 1] == name and not fields[last + 1] and last - place + 1 < ARGUMENTS_MAX do last = last + 1 end
  if last - place + 1 >= MANY then
    local look = name == 'Put' and put.look_ahead or finish.look_ahead
    look(of.jids, place, last)
  end
  return last
end

-- Does one command after the other, and answers the reply.
function batch.run(of)
  local count, place, seen = of.count, 0, 0
  local moments, names, fields, operations = of.moments, of.names, of.fields, native.operations
  local pieces, last = { packed_head(count, 144, 220) }, 1
  known.many = count >= MANY
  local function go_on()
    while place < count do
      place = place + 1
      if place > seen then seen = look_ahead(of, place) end
      now = moments[place] or moment()
      local name, given = names[place], fields[place]
      if given then
        known.place = place
        -- Large answers are joined only once.
        local reply = operations[name](given)
        if type(reply) == 'string' then reply = { reply } end
        last = last + 1
        pieces[last] = native.answered(name)
        for at = 1, #reply do pieces[last + at] = reply[at] end
        last = last + #reply
      else
        local answer = plain[name](of, place)
        last = last + 1
        pieces[last] = answer
      end
    end
  end
  -- What is refused is answered, and the next one is done.
  while place < count do
    local done, reply = pcall(go_on)
    if not done then
      last = last + 1
      pieces[last] = native.refused(reply)
    end
  end
  return table.concat(pieces)
end
