-- What the scripts share: the keys of one name, the server's clock, and the line.
--
-- KEYS: 1 the lock    string, the holder's claim id: `SET name id NX PX ttl`, as every Redlock-style client does it
--       2 {lock}:h    string, the hold:  id token turns since mode channel label   (lives as long as the lock)
--       3 {lock}:f    string, the greatest token given out                         (outlives the lock by KEEP)
--       4 {lock}:q    sorted set, the line: ids by ticket
--       5 {lock}:w    hash, the places: id -> deadline ttl turns attempt since mode channel label
-- Times are milliseconds of the server's clock; tokens are its microseconds, exact in a double until the year 2255.
local LOCK, HOLD, FENCE, LINE, PLACES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

-- A token is never below the clock, so the last one matters only after the clock stepped back. It is kept for two hours
-- past its own value: tokens rise through every step back of up to two hours, however long the lock was idle.
local KEEP = 7200000

-- One read for all that an uncontended claim or release wants to know. A value of another type reads as none: see grant.
local found = redis.call('MGET', LOCK, HOLD, FENCE)
local holder, last = found[1], tonumber(found[3]) or 0

local time
local function micros()
  if not time then
    time = redis.call('TIME')
    time = time[1] * 1000000 + time[2]
  end
  return time
end

local function now()
  return math.floor(micros() / 1000)
end

local function int(n)
  return string.format('%.0f', n)
end

-- The hold that the lock stands for; nil if it is free or another tool's.
local function hold()
  if not holder or not found[2] then return nil end
  local id, token, turns, since, mode, channel, label =
    string.match(found[2], '^(%S+) (%d+) (%d+) (%d+) (%S+) (%S+) (.*)$')
  if id ~= holder then return nil end
  return { token = token, turns = turns, since = since, mode = mode, channel = channel, label = label }
end

local function write_hold(id, h, ms)
  local text = table.concat({ id, h.token, h.turns, h.since, h.mode, h.channel, h.label }, ' ')
  redis.call('SET', HOLD, text, 'PX', ms)
end

-- Gives the free lock to this id for so many milliseconds, with a token above every one before.
local function grant(id, p, ms)
  ms = int(ms)
  if not redis.call('SET', LOCK, id, 'NX', 'PX', ms) then
    redis.call('GET', LOCK) -- says that it is of another type
  end
  local token = math.max(last + 1, micros())
  last = token + p.turns - 1
  redis.call('SET', FENCE, int(last), 'PX', int(KEEP + math.ceil((last - micros()) / 1000)))
  local h = { token = int(token), turns = p.turns, since = int(now()), mode = p.mode, channel = p.channel, label = p.label }
  write_hold(id, h, ms)
  return h
end

-- The place of this id; nil if it has none, or if its lease is over.
local function place_of(id)
  local text = redis.call('HGET', PLACES, id)
  if not text then return nil end
  local deadline, ttl, turns, attempt, since, mode, channel, label =
    string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (.*)$')
  deadline = tonumber(deadline)
  if not deadline or deadline <= now() then return nil end
  return { deadline = deadline, ttl = ttl, turns = turns, attempt = attempt, since = since, mode = mode,
    channel = channel, label = label }
end

-- Writes a place whose lease counts from now, or from later if it did before. The attempt is the latest that was seen:
-- the server saw it before now, so the lease never ends before that attempt's own would.
local function write_place(id, p, attempt)
  p.deadline = math.max(p.deadline or 0, now() + p.ttl)
  p.attempt = math.max(p.attempt or 0, attempt)
  redis.call('HSET', PLACES, id,
    table.concat({ int(p.deadline), p.ttl, p.turns, int(p.attempt), p.since, p.mode, p.channel, p.label }, ' '))
  local ms = p.deadline - now()
  if math.min(redis.call('PTTL', LINE), redis.call('PTTL', PLACES)) < ms then
    redis.call('PEXPIRE', LINE, int(ms))
    redis.call('PEXPIRE', PLACES, int(ms))
  end
end

local function leave(id)
  redis.call('ZREM', LINE, id)
  redis.call('HDEL', PLACES, id)
end

-- The first in line whose lease is not over; the dead before it leave.
local function head()
  while true do
    local id = redis.call('ZRANGE', LINE, 0, 0)[1]
    local p = id and place_of(id)
    if p or not id then return id, p end
    leave(id)
  end
end

-- Gives the free lock to the head of the line, for what is left of its place's lease, and tells exactly its client.
local function hand_over()
  local id, p = head()
  if not id then return nil end
  local h = grant(id, p, p.deadline - now())
  leave(id)
  redis.call('PUBLISH', p.channel, table.concat({ 'granted', id, h.token, h.turns, p.attempt, p.ttl, LOCK }, ' '))
  return id, h
end

local function granted(h)
  return 'granted ' .. h.token .. ' ' .. h.turns
end

