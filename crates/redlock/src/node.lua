-- What one of the independent servers does for a name, in one step. It knows nothing of the others.
-- ARGV: verb, id, and what the verb takes.
--
-- KEYS: 1 the lock     string, the holder's claim id (`SET name id NX PX ttl`, as every Redlock client does it), or SHARED
--       2 {lock}:rh    hash, who holds:  id -> deadline token turns since joined attempt mode channel label
--       3 {lock}:rf    string, the greatest token given out or written back here
--       4 {lock}:rq    sorted set, the waiting room: ids by when they came
--       5 {lock}:rw    hash, who waits:  id -> deadline since rung mode channel label;  `next` -> deadline id mode
-- Times are milliseconds of this server's clock, tokens microseconds, exact in a double until the year 2255.
-- Modes: x exclusive, s shared. An attempt is the number of the last request that took or kept the hold: a release that was
-- sent before it and comes late ends nothing.
local LOCK, HOLD, FENCE, ROOM, WAITS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local verb, id = ARGV[1], ARGV[2]

-- The lock's value while readers hold it.
local SHARED = 'leasehold:shared'
-- The greatest token is kept so long past its own value: then this clock itself is above it.
local KEEP = 7200000
-- A proposal further ahead of this clock is cut, or one bad clock would drive the tokens of all.
local AHEAD = 60000000
-- How long a freed lock waits for the one that was rung, before others may take it.
local GRACE = 50
-- How many of those who wait are looked at to find whom to ring.
local RINGS = 16

local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)

local function int(n)
  return string.format('%.0f', n)
end

local function read(text)
  local deadline, token, turns, since, joined, attempt, mode, channel, label =
    string.match(text or '', '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S) (%S+) (.*)$')
  if not deadline then return nil end
  return { deadline = tonumber(deadline), token = tonumber(token), turns = tonumber(turns), since = since,
    joined = joined, attempt = tonumber(attempt), mode = mode, channel = channel, label = label }
end

-- Who holds here. An exclusive hold ends with the lock's key, a shared one at its deadline.
local value = redis.call('GET', LOCK)
local holders, foreign = {}, false
if value == SHARED then
  local all = redis.call('HGETALL', HOLD)
  for i = 1, #all, 2 do
    local h = read(all[i + 1])
    if h and h.deadline > now then holders[all[i]] = h else redis.call('HDEL', HOLD, all[i]) end
  end
elseif value then
  holders[value] = read(redis.call('HGET', HOLD, value)) or value == id and #id == 32 and {} or nil
  foreign = not holders[value]
end
local mine = holders[id]

local function admits(mode)
  return not foreign and (next(holders) == nil or mode == 's' and value == SHARED)
end

-- Who holds, or a holder's label, has changed: observers look.
local function stir()
  redis.call('PUBLISH', 'leasehold:name:' .. LOCK, '')
end

-- Writes a hold with a new lease.
local function put(h, ttl, attempt)
  h.attempt = math.max(h.attempt or 0, attempt)
  local lock, ms = id, ttl
  if h.mode == 's' then
    lock = SHARED
    if value == SHARED then ms = math.max(ms, redis.call('PTTL', LOCK)) end
  end
  if value ~= lock then redis.call('DEL', HOLD) end
  redis.call('SET', LOCK, lock, 'PX', int(ms))
  redis.call('HSET', HOLD, id, table.concat({ int(now + ttl), int(h.token), h.turns, h.since, h.joined,
    int(h.attempt), h.mode, h.channel, h.label }, ' '))
  redis.call('PEXPIRE', HOLD, int(ms))
  value, holders[id] = lock, h
end

-- The greatest token is at least this one.
local function raise(token)
  local last = math.max(tonumber(redis.call('GET', FENCE)) or 0, token)
  redis.call('SET', FENCE, int(last), 'PX', int(KEEP + math.max(0, math.ceil((last - micros) / 1000))))
end

local function end_hold(who)
  redis.call('HDEL', HOLD, who)
  holders[who] = nil
  stir()
  if next(holders) == nil then
    redis.call('DEL', LOCK, HOLD)
    value = false
  end
end

local function waiter(who)
  local text = redis.call('HGET', WAITS, who) or ''
  local deadline, since, rung, mode, channel, label = string.match(text, '^(%d+) (%d+) (%d) (%S) (%S+) (.*)$')
  if not deadline or tonumber(deadline) <= now then return nil end
  return { deadline = deadline, since = since, rung = rung, mode = mode, channel = channel, label = label }
end

-- Whether a reader that joins other readers would pass a writer who waits: out of courtesy it waits behind.
local function passes_writer(since)
  for _, who in ipairs(redis.call('ZRANGE', ROOM, 0, RINGS - 1)) do
    local w = waiter(who)
    if w and w.mode == 'x' and (not since or tonumber(w.since) < tonumber(since)) then return true end
  end
  return false
end

local function write_waiter(who, w)
  redis.call('HSET', WAITS, who, table.concat({ w.deadline, w.since, w.rung, w.mode, w.channel, w.label }, ' '))
end

local function join(w, ttl)
  w.deadline, w.rung = int(now + ttl), 0
  redis.call('ZADD', ROOM, w.since, id)
  write_waiter(id, w)
  if math.min(redis.call('PTTL', ROOM), redis.call('PTTL', WAITS)) < tonumber(ttl) then
    redis.call('PEXPIRE', ROOM, ttl)
    redis.call('PEXPIRE', WAITS, ttl)
  end
end

local function leave(who)
  redis.call('ZREM', ROOM, who)
  redis.call('HDEL', WAITS, who)
end

-- For whom a freed lock is kept for a moment: its id, its mode, for how long.
local function reserved()
  local deadline, who, mode = string.match(redis.call('HGET', WAITS, 'next') or '', '^(%d+) (%S+) (%S)$')
  if deadline and tonumber(deadline) > now then return who, mode, tonumber(deadline) - now end
end

-- Rings the first who waits and could get in, once each until it asks again; with a reader, the other readers too.
local function ring()
  local first
  local open = next(holders) == nil
  for _, who in ipairs(redis.call('ZRANGE', ROOM, 0, RINGS - 1)) do
    local w = waiter(who)
    if not w then
      leave(who)
    elseif not admits(w.mode) then
      return
    elseif w.rung == '0' and (w.mode == 's' or not first) then
      w.rung = 1
      write_waiter(who, w)
      redis.call('PUBLISH', w.channel, 'again ' .. who)
      if open and not first then
        redis.call('HSET', WAITS, 'next', int(now + GRACE) .. ' ' .. who .. ' ' .. w.mode)
      end
      first = who
      if w.mode == 'x' then return end
    end
  end
end

-- take: ttl, mode, turns, channel, label, attempt, proposal, 1 to wait.
-- Answers `granted micros token`, or `refused micros kind token held_for waiters left label`: kind is `ours`, `foreign`
-- or `next`.
if verb == 'take' then
  local ttl, mode, turns, attempt, proposal = ARGV[3], ARGV[4], ARGV[5], ARGV[8], tonumber(ARGV[9])
  local who, its, left = reserved()
  if who == id then
    redis.call('HDEL', WAITS, 'next')
    who = nil
  end
  if mine and mine.token then
    put(mine, ttl, attempt)
    return 'granted ' .. int(micros) .. ' ' .. int(mine.token)
  end
  local w = waiter(id)
  local in_turn = not who or mode == 's' and its == 's'
  if next(holders) and mode == 's' and in_turn then in_turn = not passes_writer(w and w.since) end
  if mine or admits(mode) and in_turn then
    local last = tonumber(redis.call('GET', FENCE)) or micros
    local token = math.max(last + 1, math.min(proposal, micros + AHEAD))
    raise(token + turns - 1)
    if w then leave(id) end
    put({ token = token, turns = turns, since = int(now), joined = w and w.since or int(now),
      mode = mode, channel = ARGV[6], label = ARGV[7] }, ttl, attempt)
    stir()
    return 'granted ' .. int(micros) .. ' ' .. int(token)
  end
  if ARGV[10] == '1' then
    join({ since = w and w.since or int(now), mode = mode, channel = ARGV[6], label = ARGV[7] }, ttl)
  end
  local kind, h = 'foreign', select(2, next(holders))
  if h then
    kind, left = 'ours', redis.call('PTTL', LOCK)
  elseif foreign then
    left = redis.call('PTTL', LOCK)
  else
    kind, h = 'next', who and waiter(who)
  end
  local others = redis.call('ZCARD', ROOM) - (redis.call('ZSCORE', ROOM, id) and 1 or 0)
  return table.concat({ 'refused', int(micros), kind, int(h and h.token or 0), int(h and math.max(0, now - h.since) or 0),
    others, int(left), h and h.label or '' }, ' ')
end

-- keep: ttl, mode, turns, channel, label, attempt, token, what. Extends what is there, and writes the token back. What: `renew`;
-- `again`, which takes over the label and turns exclusive into shared; `top`, which takes what is free.
-- Answers `kept`, `topped` or `gone`.
if verb == 'keep' then
  local ttl, mode, turns, token, what = ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[9]), ARGV[10]
  local answer, h = 'kept', mine
  if not h then
    if what ~= 'top' or not admits(mode) or reserved() then return 'gone' end
    answer, h = 'topped', {}
  end
  if h.token ~= token then
    h.token, h.turns = token, turns
    raise(token + turns - 1)
  end
  if not h.mode then
    h.since, h.joined, h.mode, h.channel, h.label = int(now), int(now), mode, ARGV[6], ARGV[7]
  end
  local shares = false
  if what == 'again' then
    if h.label ~= ARGV[7] then stir() end
    shares = h.mode == 'x' and mode == 's'
    h.channel, h.label, h.mode = ARGV[6], ARGV[7], shares and 's' or h.mode
  end
  put(h, ttl, ARGV[8])
  if shares then ring() end
  return answer
end

-- release: ttl, attempt, 1 to stay in the waiting room. Answers `ok`.
if verb == 'release' then
  local ttl, stays = ARGV[3], ARGV[5] == '1'
  if mine and mine.token and mine.attempt > tonumber(ARGV[4]) then return 'ok' end
  local was_next = reserved() == id
  if was_next then redis.call('HDEL', WAITS, 'next') end
  if mine then end_hold(id) end
  if not stays then
    leave(id)
    if mine or was_next then ring() end
  elseif mine and mine.mode then
    join({ since = mine.joined, mode = mine.mode, channel = mine.channel, label = mine.label }, ttl)
  end
  return 'ok'
end

-- evict: the token, or that of a turn, in place of an id. Answers `evicted` or `none`.
if verb == 'evict' then
  for who, h in pairs(holders) do
    local turn = tonumber(id) - h.token
    if turn >= 0 and turn < h.turns then
      end_hold(who)
      redis.call('PUBLISH', h.channel, 'evicted ' .. who)
      ring()
      return 'evicted'
    end
  end
  return 'none'
end

-- inspect. Answers a list: `held who token since label`, `foreign who 0 0 `, `waits who 0 since label`, where `who` is the
-- same on every server, and no id.
local seen = {}
for who, h in pairs(holders) do
  seen[#seen + 1] = table.concat({ 'held', redis.sha1hex(who), int(h.token), h.since, h.label }, ' ')
end
if foreign then seen[1] = 'foreign ' .. redis.sha1hex(value) .. ' 0 0 ' end
for _, who in ipairs(redis.call('ZRANGE', ROOM, 0, -1)) do
  local w = waiter(who)
  if w then seen[#seen + 1] = table.concat({ 'waits', redis.sha1hex(who), 0, w.since, w.label }, ' ') end
end
return seen
