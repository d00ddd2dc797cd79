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

local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)

local function int(n)
  return string.format('%.0f', n)
end

-- The hold of this holder; nil if the lock is free or another tool's.
local function hold_of(holder)
  local text = holder and redis.call('GET', HOLD)
  if not text then return nil end
  local id, token, turns, since, mode, channel, label = string.match(text, '^(%S+) (%d+) (%d+) (%d+) (%S+) (%S+) (.*)$')
  if id ~= holder then return nil end
  return { token = tonumber(token), turns = tonumber(turns), since = tonumber(since), mode = mode, channel = channel, label = label }
end

local function write_hold(id, h, ms)
  redis.call('SET', LOCK, id, 'PX', int(ms))
  redis.call('SET', HOLD, table.concat({ id, int(h.token), int(h.turns), int(h.since), h.mode, h.channel, h.label }, ' '), 'PX', int(ms))
end

-- Gives the free lock to this id for so many milliseconds, with a token above every one before.
local function grant(id, p, ms)
  local token = math.max((tonumber(redis.call('GET', FENCE)) or 0) + 1, micros)
  local last = token + p.turns - 1
  redis.call('SET', FENCE, int(last), 'PX', int(KEEP + math.ceil((last - micros) / 1000)))
  local h = { token = token, turns = p.turns, since = now, mode = p.mode, channel = p.channel, label = p.label }
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
  if not deadline or deadline <= now then return nil end
  return { deadline = deadline, ttl = tonumber(ttl), turns = tonumber(turns), attempt = tonumber(attempt),
    since = tonumber(since), mode = mode, channel = channel, label = label }
end

-- Writes a place whose lease counts from now, or from later if it did before. The attempt is the latest that was seen:
-- the server saw it before now, so the lease never ends before that attempt's own would.
local function write_place(id, p, attempt)
  p.deadline = math.max(p.deadline or 0, now + p.ttl)
  p.attempt = math.max(p.attempt or 0, attempt)
  redis.call('HSET', PLACES, id, table.concat({ int(p.deadline), int(p.ttl), int(p.turns), int(p.attempt), int(p.since),
    p.mode, p.channel, p.label }, ' '))
  local ms = p.deadline - now
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
  local h = grant(id, p, p.deadline - now)
  leave(id)
  redis.call('PUBLISH', p.channel,
    table.concat({ 'granted', id, int(h.token), int(h.turns), int(p.attempt), int(p.ttl), LOCK }, ' '))
  return id, h
end

local function granted(h)
  return table.concat({ 'granted', int(h.token), int(h.turns) }, ' ')
end

