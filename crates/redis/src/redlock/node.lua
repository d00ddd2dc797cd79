-- What one of the independent servers does for a claim, in one step. It knows nothing of the others.
-- ARGV: verb, id, ttl, mode, turns, channel, label, attempt, list, and what the verb takes. `list` is the number of the list of nodes
-- that the client goes by.
--
-- KEYS: all of these, in this order; many servers refuse a key that was not declared.
--
--       the lock       string, the holder's claim id (`SET name id NX PX ttl`, as every Redlock client does it), or SHARED
--       {lock}:rq      sorted set, waiters: ids by when they came
--       {lock}:rh      hash, holders:  id -> entry
--       {lock}:rw      hash, waiters:  id -> entry;  `next` -> deadline id mode
--       {lock}:rs      sorted set, readers: ids by deadline
--       {lock}:re      sorted set, tokens of holds that other servers have evicted, by until when it matters
--       {prefix}:rt    hash, the last tokens of names: lock -> the greatest given out or written back here; '' -> bound older floor
--       {prefix}:ro    hash, the one before it, with tokens up to `older`
--       {prefix}:rb    string, the bound: no token here is greater, of any name
--       {prefix}:rn    hash, the list of nodes that this one is in, and when leases end: see `list.lua`
-- An entry: deadline ttl token turns since joined attempt notified mode channel label. Modes: x exclusive, s shared. An attempt is
-- the number of the last request that took or kept the hold: a release that was sent before it and comes late ends nothing.
-- `notified` is CLOSED for a hold that ends by itself. What a request costs does not grow with the number of readers.
local LOCK, QUEUE, HOLDERS, WAITERS, SHARERS, EVICTED, TOKENS, OLDER, BOUND, LIST = unpack(KEYS)
local call = redis.call
local verb, id, ttl, mode, turns, channel, label, attempt, list = unpack(ARGV)

-- The lock's value while readers hold it.
local SHARED = 'leasehold:shared'
-- Nothing extends such a hold.
local CLOSED = '2'
-- A proposal further ahead of this clock is cut, or one bad clock would drive the tokens of all.
local AHEAD = 60000000
-- How long a freed lock waits for the waiter that was notified, before others may claim it.
local GRACE = 50
-- How many waiters are looked at to find those to notify.
local LOOKED_AT = 16
-- How many dead readers one request removes.
local DEAD = 100

-- What takes or extends a hold counts only among the nodes of one list. It is done for the list that is open here, and for the one before it
-- until that is closed. Without a record only those are served that know of no list.
-- Answers `list number nodes before closed`: the newest list that is open here, and the one before it. The number is -1 without a record.
local open, is_closed, blank, nodes, before, last_end, last_end_before
if verb == 'claim' or verb == 'renew' or verb == 'release_after' then
  local record = call('HMGET', LIST, 'number', 'closed', 'blank', 'nodes', 'before', 'until', 'until_before')
  open, is_closed, blank, nodes, before, last_end, last_end_before = unpack(record)
  open, list = tonumber(open), tonumber(list)
  local serves = list == open or open and list == open - 1 and not is_closed
  if not open then serves = list == 0 and not blank end
  if not serves then
    return table.concat({ 'list', open or -1, nodes or '-', before or '-', is_closed and 1 or 0 }, ' ')
  end
end

-- Notes when the last lease that was granted here to this list ends, which is awaited before nodes are replaced. A fourth is added, so that
-- few leases have to be noted. Without a list the note goes by itself.
local function ends_by(deadline)
  local field, noted = 'until', last_end
  if open and list < open then field, noted = 'until_before', last_end_before end
  if noted and deadline <= tonumber(noted) then return end
  local rest = math.ceil((deadline - now) * 1.25)
  call('HSET', LIST, field, now + rest)
  if not open and not blank then call('PEXPIRE', LIST, rest) end
end

-- For how many microseconds of tokens one hash serves, and for how many milliseconds it stays when the clock has passed them.
local AGE, SPARE = 2000000, 3000

-- Last tokens. Once the clock has passed the last token of a name, the name may be forgotten, as the clock gives greater ones: until it
-- steps back. A name alone that is gone looks as one that never was. So many names are in one hash, which goes with all of them, and
-- that it is gone is seen: then new tokens are above all that it had, by the bound. While the clock goes on, it is greater than those,
-- and nodes agree on what a client proposes. `floor` bounds the tokens of hashes that went before.
local bound, older, floor, anew

-- The last token of this name here; or a number that none which was forgotten exceeds. A key of another type in the place of the tokens
-- counts as lost data, which stops no claim: these keys are read by `pcall`, and `remember` replaces them, or names the right that is missing.
local function last_token()
  local found = redis.pcall('HMGET', TOKENS, '', LOCK)
  bound, older, floor = string.match(found[1] or '', '^(%d+) (%d+) (%d+)$')
  local last = bound and tonumber(found[2])
  if bound then
    bound, older, floor = tonumber(bound), tonumber(older), tonumber(floor)
  else
    bound = tonumber(redis.pcall('GET', BOUND))
    bound = bound and bound < 9e15 and bound or 0
    older, floor, anew = 0, bound, true
  end
  if not last and micros < older then
    found = redis.pcall('HMGET', OLDER, '', LOCK)
    last = found[1] and tonumber(found[2])
    if not found[1] then floor = math.max(floor, older) end
  end
  return last or math.max(micros, floor)
end

-- Remembers the greatest token that was given out, after `last_token`. Where it exceeds the bound, the next hash begins, unless tokens of
-- the one before are still ahead of the clock: up to those that it will never pass.
local function remember(upto)
  if not anew and upto <= bound then
    call('HSET', TOKENS, LOCK, int(upto))
    return
  end
  local last_bound = bound
  bound = math.max(bound, upto + AGE)
  -- First of all: a server whose memory is full refuses it, and nothing has changed.
  local ahead = set_bound(BOUND, bound)
  if anew then
    call('UNLINK', TOKENS)
  elseif micros >= older or older - micros > KEPT * 1000000 then
    call('UNLINK', OLDER)
    call('RENAME', TOKENS, OLDER)
    floor, older = math.max(floor, older), last_bound
  end
  call('HSET', TOKENS, '', table.concat({ int(bound), int(older), int(floor) }, ' '), LOCK, int(upto))
  call('PEXPIRE', TOKENS, ahead * 1000 + SPARE)
end

-- Tells the observers of the lock that its holder, or its label, has changed.
local function notify_observers()
  call('PUBLISH', 'leasehold:name:' .. LOCK, '')
end

-- The fast path of a claim: the lock is free, and nobody waits. Fewer commands, and nothing of the rest is even defined.
if verb == 'claim' and mode == 'x' and call('EXISTS', LOCK, HOLDERS, QUEUE, WAITERS) == 0 then
  local token = math.max(last_token() + 1, math.min(ARGV[10], micros + AHEAD))
  remember(token + turns - 1)
  ends_by(now + ttl)
  call('SET', LOCK, id, 'PX', ttl)
  call('HSET', HOLDERS, id, table.concat({ now + ttl, ttl, int(token), turns, now, now, attempt, 0, mode, channel, label }, ' '))
  call('PEXPIRE', HOLDERS, ttl)
  notify_observers()
  return 'granted ' .. int(micros) .. ' ' .. int(token)
end

-- That of a release: it is ours, of no later attempt, does not end by itself, and nobody waits.
if verb == 'release' and ARGV[10] ~= '1' and call('GET', LOCK) == id and call('EXISTS', QUEUE, WAITERS) == 0 then
  local later, notified = string.match(call('HGET', HOLDERS, id) or '', '^%d+ %d+ %d+ %d+ %d+ %d+ (%d+) (%d) ')
  if later and later - attempt <= 0 and notified ~= CLOSED then
    call('DEL', LOCK, HOLDERS)
    notify_observers()
    return 'ok'
  end
end

-- Lets a key live for so long at least.
local function outlive(key, ms)
  call('PEXPIRE', key, math.max(ms, call('PTTL', key)))
end

-- Numbers that are only reckoned with stay the texts that they are.
local function read(text)
  local deadline, ttl, token, turns, since, joined, attempt, notified, mode, channel, label =
    string.match(text or '', '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d) (%S) (%S+) (.*)$')
  return deadline and { deadline = tonumber(deadline), ttl = ttl, token = tonumber(token), turns = turns, since = since,
    joined = joined, attempt = attempt, notified = notified, mode = mode, channel = channel, label = label }
end

local function write(hash, who, e)
  call('HSET', hash, who, table.concat({ e.deadline, e.ttl, int(e.token), e.turns, e.since, e.joined, e.attempt, e.notified,
    e.mode, e.channel, e.label }, ' '))
end

-- An entry of this claim, as yet without a token.
local function new_entry()
  return { deadline = 0, ttl = ttl, token = 0, turns = turns, since = now, joined = now, attempt = 0, notified = 0, mode = mode,
    channel = channel, label = label }
end

-- No lease is further away than its own length, or the clock has stepped back. Says whether this one was.
local function cut(e)
  local too_far = e.deadline - now > tonumber(e.ttl)
  if too_far then e.deadline = now + e.ttl end
  return too_far
end

-- The holder here: one, whose lease is that of the lock's key; or several, the last of them until `last`.
local value = call('GET', LOCK)
local owner, last
local function clear()
  call('DEL', LOCK)
  call('UNLINK', HOLDERS, SHARERS)
  value, owner = false, nil
end

if value == SHARED then
  local dead = call('ZRANGEBYSCORE', SHARERS, '-inf', now, 'LIMIT', 0, DEAD)
  if dead[1] then
    call('HDEL', HOLDERS, unpack(dead))
    call('ZREM', SHARERS, unpack(dead))
  end
  for _ = 1, LOOKED_AT do
    local top = call('ZREVRANGE', SHARERS, 0, 0, 'WITHSCORES')
    local h = top[1] and read(call('HGET', HOLDERS, top[1]))
    last = tonumber(top[2])
    if not top[1] or last <= now then
      clear()
      break
    elseif not h then
      call('ZREM', SHARERS, top[1])
    elseif cut(h) then
      write(HOLDERS, top[1], h)
      call('ZADD', SHARERS, h.deadline, top[1])
      call('PEXPIRE', LOCK, h.ttl)
    else
      break
    end
  end
elseif value then
  owner = read(call('HGET', HOLDERS, value)) or value == id and mode and new_entry() or nil
  if owner then
    owner.deadline = now + call('PTTL', LOCK)
    if cut(owner) then call('PEXPIRE', LOCK, owner.ttl) end
  end
end
local foreign = value and value ~= SHARED and not owner

-- The reader of this id, if its lease is not over.
local function reader(who)
  local h = value == SHARED and read(call('HGET', HOLDERS, who))
  return h and h.deadline > now and h or nil
end
local mine = owner and value == id and owner or reader(id)

local function admits(as)
  return not value or as == 's' and value == SHARED
end

-- Writes the lease of this claim, until its deadline.
local function put(h)
  local lock, till = id, h.deadline
  if h.mode == 's' then
    lock, till = SHARED, math.max(till, value == SHARED and last or 0)
  end
  if value == lock then
    -- First of all: a server whose memory is full takes it, and whatever follows.
    call('PEXPIRE', LOCK, till - now)
  else
    call('UNLINK', HOLDERS, SHARERS)
    call('SET', LOCK, lock, 'PX', till - now)
  end
  ends_by(h.deadline)
  write(HOLDERS, id, h)
  call('PEXPIRE', HOLDERS, till - now)
  if lock == SHARED then
    call('ZADD', SHARERS, h.deadline, id)
    call('PEXPIRE', SHARERS, till - now)
  end
  value, last = lock, till
end

-- Counts the lease from now, unless it lasts longer already.
local function extend(h)
  if now + ttl >= h.deadline then
    h.deadline, h.ttl = now + ttl, ttl
  end
  h.attempt = math.max(h.attempt, attempt)
  put(h)
end

-- Gives the hold this token, and the block that it begins, after the last one of all.
local function number(h, token, last)
  h.token, h.turns = token, turns
  remember(math.max(last, token + turns - 1))
end

local function end_hold(who)
  notify_observers()
  call('HDEL', HOLDERS, who)
  call('ZREM', SHARERS, who)
  local top = value == SHARED and call('ZREVRANGE', SHARERS, 0, 0, 'WITHSCORES') or {}
  if not top[1] or tonumber(top[2]) <= now then
    clear()
  else
    call('PEXPIRE', LOCK, top[2] - now)
  end
end

local function waiter(who)
  local w = read(call('HGET', WAITERS, who))
  if w and cut(w) then write(WAITERS, who, w) end
  return w and w.deadline > now and w
end

-- Whether a reader that joins other readers would pass a waiting writer: it waits behind that one, though nothing forces it to.
local function passes_writer(joined)
  for _, who in ipairs(call('ZRANGE', QUEUE, 0, LOOKED_AT - 1)) do
    local w = waiter(who)
    if w and w.mode == 'x' and w.joined - joined <= 0 then return true end
  end
  return false
end

local function join(w)
  w.deadline, w.ttl, w.token, w.notified = now + ttl, ttl, 0, 0
  call('ZADD', QUEUE, w.joined, id)
  write(WAITERS, id, w)
  outlive(QUEUE, ttl)
  outlive(WAITERS, ttl)
end

local function leave(who)
  call('ZREM', QUEUE, who)
  call('HDEL', WAITERS, who)
end

-- The waiter for which a freed lock is reserved for a moment: its id, its mode, for how long. What is over goes.
local function reserved()
  local deadline, who, as = string.match(call('HGET', WAITERS, 'next') or '', '^(%d+) (%S+) (%S)$')
  local left = deadline and deadline - now
  if left and left > 0 and left <= GRACE then return who, as, left end
  if left then call('HDEL', WAITERS, 'next') end
end

-- Notifies the first waiter that is admitted now, once until it claims again; with a reader, the other readers too.
local function notify_waiters()
  local first
  local open = not value
  for _, who in ipairs(call('ZRANGE', QUEUE, 0, LOOKED_AT - 1)) do
    local w = waiter(who)
    if not w then
      leave(who)
    elseif not admits(w.mode) then
      return
    elseif w.notified == '0' and (w.mode == 's' or not first) then
      w.notified = 1
      write(WAITERS, who, w)
      call('PUBLISH', w.channel, 'again ' .. who)
      if open and not first then
        call('HSET', WAITERS, 'next', now + GRACE .. ' ' .. who .. ' ' .. w.mode)
      end
      first = who
      if w.mode == 'x' then return end
    end
  end
end

local closed = mine and mine.notified == CLOSED

-- claim: proposal, 1 to wait.
-- Answers `granted micros token`, or `refused micros kind token held_for others left 0 label`: kind is `ours`, `foreign`
-- or `next`.
if verb == 'claim' then
  local who, its, left = reserved()
  if who == id then
    call('HDEL', WAITERS, 'next')
    who = nil
  end
  local w, h = waiter(id), mine or new_entry()
  h.joined = w and w.joined or h.joined
  local in_turn = not who or mode == 's' and its == 's'
  if value == SHARED and mode == 's' and in_turn then in_turn = not passes_writer(h.joined) end
  if not closed and (mine or admits(mode) and in_turn) then
    if h.token == 0 then
      local last = last_token()
      number(h, math.max(last + 1, math.min(ARGV[10], micros + AHEAD)), last)
      leave(id)
      notify_observers()
    end
    extend(h)
    return 'granted ' .. int(micros) .. ' ' .. int(h.token)
  end
  if ARGV[11] == '1' and not closed then join(h) end
  local kind, other = 'foreign', owner or value == SHARED and reader(call('ZRANGE', SHARERS, -1, -1)[1])
  if other then
    kind, left = 'ours', call('PTTL', LOCK)
  elseif foreign then
    left = call('PTTL', LOCK)
  else
    kind, other = 'next', who and waiter(who)
  end
  local others = call('ZCARD', QUEUE) - (call('ZSCORE', QUEUE, id) and 1 or 0)
  return table.concat({ 'refused', int(micros), kind, int(other and other.token or 0),
    other and math.max(0, now - other.since) or 0, others, left or 0, 0, other and other.label or '' }, ' ')
end

-- renew: token, what. Extends what is there, and writes the token and the label back; a claim that is shared by now makes
-- an exclusive entry shared, and none makes it exclusive again. What: `renew`; or `top`, which takes what is free.
-- Answers `kept`, `topped` or `gone`. One that comes after its claim has got another hold is late.
if verb == 'renew' then
  local answer, h, token = 'kept', mine, tonumber(ARGV[10])
  if closed then return 'gone' end
  if h and h.token ~= token and h.attempt - attempt > 0 then return 'gone' end
  if not (h and h.token == token) and call('ZSCORE', EVICTED, ARGV[10]) then
    if h then
      end_hold(id)
      notify_waiters()
    end
    return 'gone'
  end
  if not h then
    if ARGV[11] ~= 'top' or not admits(mode) or reserved() then return 'gone' end
    answer, h = 'topped', new_entry()
  end
  if h.token ~= token then number(h, token, last_token()) end
  local shares = h.mode == 'x' and mode == 's'
  if shares then h.mode = 's' end
  if attempt - h.attempt > 0 then
    if h.label ~= label then notify_observers() end
    h.channel, h.label = channel, label
  end
  extend(h)
  if shares then notify_waiters() end
  return answer
end

-- release_after: in how many milliseconds. Answers `ok`.
if verb == 'release_after' then
  if mine then
    local till = now + ARGV[10]
    mine.deadline, mine.ttl = closed and math.min(mine.deadline, till) or till, ARGV[10]
    mine.notified, mine.attempt = CLOSED, math.max(mine.attempt, attempt)
    put(mine)
    if value == SHARED then
      local top = call('ZREVRANGE', SHARERS, 0, 0, 'WITHSCORES')
      call('PEXPIRE', LOCK, top[2] - now)
    end
  end
  return 'ok'
end

-- release: 0 for good, 1 to stay among the waiters, 2 for what an attempt has left: not what ends by itself. Answers `ok`.
if verb == 'release' then
  if mine and (mine.attempt - attempt > 0 or closed and ARGV[10] ~= '0') then return 'ok' end
  local was_next = reserved() == id
  if was_next then call('HDEL', WAITERS, 'next') end
  if mine then end_hold(id) end
  if ARGV[10] ~= '1' then
    leave(id)
    if mine or was_next then notify_waiters() end
  elseif mine then
    join(mine)
  end
  return 'ok'
end
