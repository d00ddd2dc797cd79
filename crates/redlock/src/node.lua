-- What one of the independent servers does for a name, in one step. It knows nothing of the others.
-- ARGV: verb, id, ttl, mode, turns, channel, label, attempt, and what the verb takes. Or, to look on: verb, and a token.
--
-- KEYS: 1 the lock     string, the holder's claim id (`SET name id NX PX ttl`, as every Redlock client does it), or SHARED
--       2 {lock}:rh    hash, who holds:  id -> entry
--       3 {lock}:rf    string, the greatest token given out or written back here
--       4 {lock}:rq    sorted set, the waiting room: ids by when they came
--       5 {lock}:rw    hash, who waits:  id -> entry;  `next` -> deadline id mode
-- An entry: deadline token turns since joined attempt rung mode channel label. Modes: x exclusive, s shared. An attempt is
-- the number of the last request that took or kept the hold: a release that was sent before it and comes late ends nothing.
local LOCK, HOLD, FENCE, ROOM, WAITS = unpack(KEYS)
local verb, id, ttl, mode, turns, channel, label, attempt = unpack(ARGV)

-- The lock's value while readers hold it.
local SHARED = 'leasehold:shared'
-- A proposal further ahead of this clock is cut, or one bad clock would drive the tokens of all.
local AHEAD = 60000000
-- How long a freed lock waits for the one that was rung, before others may take it.
local GRACE = 50
-- How many of those who wait are looked at to find whom to ring.
local RINGS = 16

-- Numbers that are only reckoned with stay the texts that they are.
local function read(text)
  local deadline, token, turns, since, joined, attempt, rung, mode, channel, label =
    string.match(text or '', '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d) (%S) (%S+) (.*)$')
  return deadline and { deadline = tonumber(deadline), token = tonumber(token), turns = turns, since = since,
    joined = joined, attempt = attempt, rung = rung, mode = mode, channel = channel, label = label }
end

local function write(hash, who, e)
  call('HSET', hash, who, table.concat({ e.deadline, int(e.token), e.turns, e.since, e.joined, e.attempt, e.rung,
    e.mode, e.channel, e.label }, ' '))
end

-- An entry of whoever asks, as yet without a token.
local function fresh()
  return { token = 0, turns = turns, since = now, joined = now, attempt = 0, rung = 0, mode = mode,
    channel = channel, label = label }
end

-- Who holds here. An exclusive hold ends with the lock's key, a shared one at its deadline.
local value = call('GET', LOCK)
local holders, foreign = {}, false
if value == SHARED then
  local all = call('HGETALL', HOLD)
  for i = 1, #all, 2 do
    local h = read(all[i + 1])
    if h and h.deadline > now then holders[all[i]] = h else call('HDEL', HOLD, all[i]) end
  end
elseif value then
  holders[value] = read(call('HGET', HOLD, value)) or value == id and mode and fresh() or nil
  foreign = not holders[value]
end
local mine = holders[id]

local function admits(as)
  return not foreign and (next(holders) == nil or as == 's' and value == SHARED)
end

-- Writes a hold of whoever asks, with a new lease.
local function put(h)
  h.deadline, h.attempt = now + ttl, math.max(h.attempt, attempt)
  local lock, ms = id, ttl
  if h.mode == 's' then
    lock, ms = SHARED, math.max(ttl, call('PTTL', LOCK))
  end
  if value ~= lock then call('DEL', HOLD) end
  call('SET', LOCK, lock, 'PX', ms)
  write(HOLD, id, h)
  call('PEXPIRE', HOLD, ms)
  value, holders[id] = lock, h
end

-- Gives the hold this token, and the block that it begins.
local function number(h, token)
  h.token, h.turns = token, turns
  remember(math.max(tonumber(call('GET', FENCE)) or 0, token + turns - 1))
end

local function end_hold(who)
  call('HDEL', HOLD, who)
  holders[who] = nil
  stir()
  if next(holders) == nil then
    call('DEL', LOCK, HOLD)
    value = false
  end
end

local function waiter(who)
  local w = read(call('HGET', WAITS, who))
  return w and w.deadline > now and w
end

-- Whether a reader that joins other readers would pass a writer who waits: out of courtesy it waits behind.
local function passes_writer(joined)
  for _, who in ipairs(call('ZRANGE', ROOM, 0, RINGS - 1)) do
    local w = waiter(who)
    if w and w.mode == 'x' and w.joined - joined <= 0 then return true end
  end
  return false
end

local function join(w)
  w.deadline, w.token, w.rung = now + ttl, 0, 0
  call('ZADD', ROOM, w.joined, id)
  write(WAITS, id, w)
  outlive(ROOM, ttl)
  outlive(WAITS, ttl)
end

local function leave(who)
  call('ZREM', ROOM, who)
  call('HDEL', WAITS, who)
end

-- For whom a freed lock is kept for a moment: its id, its mode, for how long.
local function reserved()
  local deadline, who, as = string.match(call('HGET', WAITS, 'next') or '', '^(%d+) (%S+) (%S)$')
  if deadline and tonumber(deadline) > now then return who, as, deadline - now end
end

-- Rings the first who waits and could get in, once each until it asks again; with a reader, the other readers too.
local function ring()
  local first
  local open = next(holders) == nil
  for _, who in ipairs(call('ZRANGE', ROOM, 0, RINGS - 1)) do
    local w = waiter(who)
    if not w then
      leave(who)
    elseif not admits(w.mode) then
      return
    elseif w.rung == '0' and (w.mode == 's' or not first) then
      w.rung = 1
      write(WAITS, who, w)
      call('PUBLISH', w.channel, 'again ' .. who)
      if open and not first then
        call('HSET', WAITS, 'next', now + GRACE .. ' ' .. who .. ' ' .. w.mode)
      end
      first = who
      if w.mode == 'x' then return end
    end
  end
end

-- take: proposal, 1 to wait.
-- Answers `granted micros token`, or `refused micros kind token held_for others left 0 label`: kind is `ours`, `foreign`
-- or `next`.
if verb == 'take' then
  local who, its, left = reserved()
  if who == id then
    call('HDEL', WAITS, 'next')
    who = nil
  end
  local w, h = waiter(id), mine or fresh()
  h.joined = w and w.joined or h.joined
  local in_turn = not who or mode == 's' and its == 's'
  if next(holders) and mode == 's' and in_turn then in_turn = not passes_writer(h.joined) end
  if mine or admits(mode) and in_turn then
    if h.token == 0 then
      local last = tonumber(call('GET', FENCE)) or micros
      number(h, math.max(last + 1, math.min(ARGV[9], micros + AHEAD)))
      leave(id)
      stir()
    end
    put(h)
    return 'granted ' .. int(micros) .. ' ' .. int(h.token)
  end
  if ARGV[10] == '1' then join(h) end
  local kind, other = 'foreign', select(2, next(holders))
  if other then
    kind, left = 'ours', call('PTTL', LOCK)
  elseif foreign then
    left = call('PTTL', LOCK)
  else
    kind, other = 'next', who and waiter(who)
  end
  local others = call('ZCARD', ROOM) - (call('ZSCORE', ROOM, id) and 1 or 0)
  return table.concat({ 'refused', int(micros), kind, int(other and other.token or 0),
    other and math.max(0, now - other.since) or 0, others, left, 0, other and other.label or '' }, ' ')
end

-- keep: token, what. Extends what is there, and writes the token back. What: `renew`; `again`, which takes over the label and
-- turns exclusive into shared; `top`, which takes what is free.
-- Answers `kept`, `topped` or `gone`.
if verb == 'keep' then
  local answer, h, token, what = 'kept', mine, tonumber(ARGV[9]), ARGV[10]
  if not h then
    if what ~= 'top' or not admits(mode) or reserved() then return 'gone' end
    answer, h = 'topped', fresh()
  end
  if h.token ~= token then number(h, token) end
  local shares = what == 'again' and h.mode == 'x' and mode == 's'
  if what == 'again' then
    if h.label ~= label then stir() end
    h.channel, h.label, h.mode = channel, label, shares and 's' or h.mode
  end
  put(h)
  if shares then ring() end
  return answer
end

-- release: 1 to stay in the waiting room. Answers `ok`.
if verb == 'release' then
  if mine and mine.attempt - attempt > 0 then return 'ok' end
  local was_next = reserved() == id
  if was_next then call('HDEL', WAITS, 'next') end
  if mine then end_hold(id) end
  if ARGV[9] == '0' then
    leave(id)
    if mine or was_next then ring() end
  elseif mine then
    join(mine)
  end
  return 'ok'
end

-- evict: the token, or that of a turn. Answers `evicted` or `none`.
if verb == 'evict' then
  for who, h in pairs(holders) do
    local turn = id - h.token
    if turn >= 0 and turn < tonumber(h.turns) then
      end_hold(who)
      call('PUBLISH', h.channel, 'evicted ' .. who)
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
for _, who in ipairs(call('ZRANGE', ROOM, 0, -1)) do
  local w = waiter(who)
  if w then seen[#seen + 1] = table.concat({ 'waits', redis.sha1hex(who), 0, w.joined, w.label }, ' ') end
end
return seen
