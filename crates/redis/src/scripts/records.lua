-- How a record is read and written, and what a grant gives it.

-- Numbers that are not calculated with stay texts: arithmetic converts them, and formatting one is slow.
local function read(record)
  local flag, id, token, kind, n, of, ttl, turns, attempt, since, channel, label = string.match(record or '',
    '^([-+*.])(%x+) (%d+) (%l+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  return id and { flag = flag, id = id, token = tonumber(token), kind = kind, n = n, of = of, ttl = ttl, turns = turns,
    attempt = attempt, since = since, channel = channel, label = label }
end

local function text_of(e)
  return e.flag .. table.concat({ e.id, int(e.token > 0 and e.token or e.floor or 0), e.kind, e.n, e.of, e.ttl, e.turns, e.attempt, e.since, e.channel,
    e.label }, ' ')
end

-- A token above every one before. It is never below the clock, so the fence matters only after the clock stepped back: it is kept
-- for two hours past its own value. Whatever stands in its place but is no number, or one too great to be counted with, is
-- written over. With a floor the clock does not matter, unless the fence is lost. `exactly`: this token, for a hold beside no other.
local function number(e, exactly)
  local last = tonumber(redis.pcall('GET', FENCE))
  if not (last and last < 9e15) then last = micros - 1 end
  local floor, held = e.floor or 0, e.token > 0
  e.token = exactly or math.max(last + 1, floor > 0 and floor or micros)
  if not held then
    if e.token - micros > BLOCKS then e.turns = 1 end
    e.since = now
  end
  last = math.max(last, e.token + e.turns - 1)
  call('SET', FENCE, int(last), 'EX', 7200 + math.max(0, math.ceil((last - micros) / 1000000)))
end

-- Tells a waiter that it holds, or that it should ask again.
local function notify(e)
  call('PUBLISH', e.channel, e.token == 0 and 'again ' .. e.id or
    table.concat({ 'granted', e.id, int(e.token), e.turns, e.attempt, e.ttl, LOCK }, ' '))
end

