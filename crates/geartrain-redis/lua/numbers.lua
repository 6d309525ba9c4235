-- Numbers and their texts: finite doubles, exact digits, neighbouring scores.

local frexp, ldexp = math.frexp, math.ldexp
local finite_max = 1.7976931348623157e308

-- Clamps to the finite numbers.
local function finite(number)
  if number > finite_max then return finite_max end
  if number < -finite_max then return -finite_max end
  return number
end

-- A number with all its digits. Integers, which most are, take the fast path.
local function exact(number)
  if number % 1 == 0 and number < 1e14 and number > -1e14 then return tostring(number) end
  return string.format('%.17g', number)
end

-- A number for a hash. Small integers, which nearly all are, are cached.
local small = {}
local function stored(number)
  local text = small[number]
  if text then return text end
  text = exact(number)
  if number >= 0 and number <= 100 and number % 1 == 0 then small[number] = text end
  return text
end

-- The next larger time that a double can represent.
local function after(at)
  if at == 0 then return 5e-324 end
  local fraction, exponent = frexp(at)
  local step = ldexp(1, exponent - 53)
  if fraction == -0.5 then step = step / 2 end
  return finite(at + step)
end

local STEP_MIN = ldexp(1, -80) -- far below the resolution of times, and far above denormals, which are slow

-- The next lower score, the step to it, and the bound down to which the same step applies.
local function down(score)
  if score == huge then return finite_max, 0, huge end
  local fraction, exponent = frexp(score)
  local step = ldexp(1, exponent - 53)
  local bound = score < 0 and -ldexp(1, exponent) or ldexp(1, exponent - 1)
  if fraction == 0.5 then step, bound = step / 2, huge end
  if step < STEP_MIN or score == 0 then step, bound = STEP_MIN, huge end
  return score - step, step, bound
end

-- A finite number from text: decimal, with or without an exponent, or a hexadecimal integer. Lua would also
-- accept hexadecimal fractions, and ignore what follows a NUL.
local function number_of(text)
  local number = tonumber(text)
  if not number or number ~= number or number >= huge or number <= -huge then return nil end
  if type(text) == 'string' and text:find('[%zxX]') and not text:find('^%s*[-+]?0[xX]%x+%s*$') then
    return nil
  end
  return number
end
