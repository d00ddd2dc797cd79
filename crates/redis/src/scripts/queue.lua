-- The queue: its holders, its waiters, and which of them are admitted next.

-- Numbers that are not calculated with stay texts: arithmetic converts them, and formatting one is slow.
local function read(text)
  local id, token, turns, since, attempt, ttl, deadline, kind, n, of, channel, label = string.match(text or '',
    '^(%x+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%l+) (%d+) (%d+) (%S+) (.*)$')
  return id and { id = id, token = tonumber(token), turns = turns, since = since, attempt = attempt, ttl = ttl,
    deadline = tonumber(deadline), kind = kind, n = n, of = of, channel = channel, label = label }
end

local function text_of(e)
  return table.concat({ e.id, int(e.token), e.turns, e.since, e.attempt, e.ttl, e.deadline, e.kind, e.n, e.of,
    e.channel, e.label }, ' ')
end

-- The exclusive holder, if there is one; in any case, the permits taken of this kind. Renewals extend the key and not the entry.
local holder = read(found[1])
local kind, taken, of = 'exclusive', 1, 1
if not holder then
  kind, taken, of = string.match(found[1] or '', '^(%l+) (%d+) (%d+)$')
end
local foreign = found[1] and not kind

-- What is to be written at the end: whether the lock changed, whether what observers see did, which grants are published. Whether
-- there is more to do than one script may. Whether the clock was seen to have stepped back.
local changed, holder_changed, notified, exhausted, stepped = false, false, {}, false, false

-- No lease is further away than its own length, or the clock has stepped back.
local function is_too_far(e)
  return e.deadline - now > tonumber(e.ttl)
end

if holder then
  holder.deadline = now + call('PTTL', LOCK)
  if is_too_far(holder) then holder.deadline, changed = now + holder.ttl, true end
end

local save

-- The entry of this id. One that shares holds only while the lock says that its kind does.
local function get(id)
  if holder and holder.id == id then return holder end
  local e = has_entries and id and read(call('HGET', ENTRIES, id))
  if not e or e.token > 0 and e.kind ~= kind then return nil end
  if is_too_far(e) then
    e.deadline, stepped = now + e.ttl, true
    save(e)
  end
  return e
end

local function is_live(e)
  return e and (e == holder or e.deadline > now)
end

local function is_closed(e)
  return e.attempt == CLOSED
end

function save(e)
  if e.token > 0 then changed = true end
  if e.token > 0 and e.kind == 'exclusive' then
    holder = e
    return
  end
  has_entries = true
  call('HSET', ENTRIES, e.id, text_of(e))
  local key, score = SHARERS, e.deadline
  if e.token == 0 then
    local behind = call('ZREVRANGE', QUEUE, 0, 0, 'WITHSCORES')[2]
    key, score = QUEUE, call('ZSCORE', QUEUE, e.id) or (behind or 0) + 1
  end
  call('ZADD', key, score, e.id)
  outlive(ENTRIES, e.deadline - now)
  outlive(key, e.deadline - now)
end

-- Removes an entry, holder or waiter.
local function drop(e)
  if e.token > 0 then holder_changed = true end
  if e == holder then
    holder, kind, changed = nil, nil, true
    return
  end
  call('HDEL', ENTRIES, e.id)
  if e.token == 0 then
    call('ZREM', QUEUE, e.id)
  elseif call('ZREM', SHARERS, e.id) == 1 and kind then
    taken, changed = taken - e.n, true
    if call('EXISTS', SHARERS) == 0 then kind = nil end
  end
end

-- Counts the lease from now, unless it lasts longer already. The attempt is the latest that was seen: the server saw it before
-- now, so the lease never ends before that attempt's own would.
local function extend(e, ttl, attempt)
  if now + ttl < e.deadline then return end
  e.ttl, e.deadline, e.attempt = ttl, now + ttl, int(math.max(e.attempt, attempt))
end

local function fits(e)
  return not foreign and (not kind or kind == e.kind and taken + e.n <= tonumber(of))
end

-- Gives the lock to this entry, until its deadline, with a token above every one before.
local function grant(e)
  e.token, e.since, holder_changed = math.max(last + 1, micros), now, true
  last = e.token + e.turns - 1
  kind, taken, of = e.kind, (kind and taken or 0) + e.n, e.of
  save(e)
end

-- The first waiter whose lease is not over; the dead ones before it are removed.
local function head()
  while budget > 0 do
    local id = call('ZRANGE', QUEUE, 0, 0)[1]
    local e = id and get(id)
    if not id or is_live(e) then return e end
    budget = budget - 1
    drop(e or { id = id, token = 0, n = 0 })
  end
  exhausted = true
end

-- Removes dead sharers, and admits waiters in their order, for what is left of each lease. Holders are before all waiters, so
-- the first waiter that does not fit ends it. Answers that one; none if the budget is exhausted before.
local function admit_waiters()
  if not has_entries or holder then return end
  local dead = call('ZRANGEBYSCORE', SHARERS, '-inf', kind and now or '+inf', 'LIMIT', 0, math.max(budget, 0))
  for _, id in ipairs(dead) do
    budget = budget - 1
    drop(get(id) or { id = id, token = 1, n = 0 })
  end
  local e = head()
  while e and fits(e) do
    budget = budget - ADMISSION
    drop(e)
    grant(e)
    notified[#notified + 1] = e
    e = head()
  end
  -- The dead behind the first are not to begin their last lease one after the other.
  for _, id in ipairs(stepped and call('ZRANGE', QUEUE, 0, 99) or {}) do get(id) end
  return e
end

-- Writes what has changed of the lock, and then publishes.
local function commit()
  if changed then
    local value, deadline
    if holder then
      value, deadline = text_of(holder), holder.deadline
    elseif kind then
      value = table.concat({ kind, taken, of }, ' ')
      deadline = call('ZREVRANGE', SHARERS, 0, 0, 'WITHSCORES')[2]
    end
    if not value then
      call('DEL', LOCK)
    elseif not call('SET', LOCK, value, found[1] and 'XX' or 'NX', 'PX', deadline - now) then
      call('GET', LOCK) -- fails if it is of another type
    end
    if last > (tonumber(found[2]) or 0) then
      remember(last)
    end
  end
  for _, e in ipairs(notified) do
    call('PUBLISH', e.channel, e.token == 0 and 'again ' .. e.id or
      table.concat({ 'granted', e.id, int(e.token), e.turns, e.attempt, e.ttl, LOCK }, ' '))
  end
  if holder_changed then notify_observers() end
end

local function granted(e)
  return 'granted ' .. int(e.token) .. ' ' .. e.turns
end

-- What is in the way: `kind token held_for others left rank label`, where kind is `ours`, or `foreign` if another tool holds it. `id`
-- is that of the claim, if it waits: it is not counted among the others, and the rank is its. To be called before `commit`, which
-- writes the deadlines that this corrects.
local function refusal(word, id)
  local h = holder or kind and get(call('ZRANGE', SHARERS, 0, 0)[1])
  local left = h and h.deadline - now or call('PTTL', LOCK)
  -- The sharers that seem to last longest are those from before a step of the clock.
  for _ = 1, kind and not holder and 10 or 0 do
    local top = call('ZREVRANGE', SHARERS, 0, 0, 'WITHSCORES')
    local e = get(top[1])
    if not e or e.deadline == tonumber(top[2]) then break end
  end
  return table.concat({ word, h and 'ours' or 'foreign', int(h and h.token or 0), h and math.max(0, now - h.since) or 0,
    call('ZCARD', QUEUE) - (id and 1 or 0), left, id and call('ZRANK', QUEUE, id) or 0, h and h.label or '' }, ' ')
end

