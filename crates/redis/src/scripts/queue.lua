-- The queue: its holders, its waiters, and which of them are admitted next.

-- Numbers that are not calculated with stay texts: arithmetic converts them, and formatting one is slow.
local function read(record)
  local flag, id, token, kind, n, of, ttl, turns, attempt, since, channel, label = string.match(record or '',
    '^([-+*.])(%x+) (%d+) (%l+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  return id and { flag = flag, id = id, token = tonumber(token), kind = kind, n = n, of = of, ttl = ttl, turns = turns,
    attempt = attempt, since = since, channel = channel, label = label }
end

local function text_of(e)
  return e.flag .. table.concat({ e.id, int(e.token), e.kind, e.n, e.of, e.ttl, e.turns, e.attempt, e.since, e.channel,
    e.label }, ' ')
end

-- The exclusive holder, if there is one; in any case, the permits taken of this kind. Renewals extend the key and not the record.
if found == nil then found = call('GET', LOCK) end
local holder = read(found)
local kind, taken, of = 'exclusive', 1, 1
if not holder then
  kind, taken, of = string.match(found or '', '^=(%l+) (%d+) (%d+)$')
end
local foreign = found and not kind
-- An exclusive hold says whether it may be observed. Otherwise the key has to be asked.
local unobserved = holder and (holder.flag == '-' or holder.flag == '+')

-- The numbers of the queue, and the ticket of this claim.
local numbers = call('HMGET', QUEUE, 't', 'h', 'g', 'x', id or '')
local tickets, gone, gaps, lives =
  tonumber(numbers[1]) or 0, tonumber(numbers[2]) or 0, tonumber(numbers[3]) or 0, tonumber(numbers[4]) or 0
local ticket = tonumber(numbers[5])

-- What is to be written at the end: whether the lock changed, and the numbers of the queue; whether what observers see changed;
-- which waiters are notified. The server's clock, if the fence was raised. Whether there is more to do than one script may. Whether
-- the clock was seen to have stepped back.
local changed, moved, holder_changed, notified, raised, exhausted, stepped = false, false, false, {}, '', false, false

local function is_live(e)
  return e and (e == holder or e.deadline > now)
end

local function waiters()
  return tickets - gone - gaps
end

local function is_shared()
  return kind and not holder
end

local function save(e)
  if e.token > 0 then changed = true end
  if e == holder then return end
  local text = e.deadline .. ' ' .. text_of(e)
  call('HSET', QUEUE, e.id, e.ticket or text, e.ticket or e.id, text, 't', tickets, 'x', math.max(lives, e.deadline))
  if e.token > 0 then call('ZADD', SHARERS, e.deadline, e.id) end
  if e.deadline > lives then
    lives = e.deadline
    call('PEXPIRE', QUEUE, lives - now)
  end
end

-- No lease is further away than its own length, or the clock has stepped back. Says whether this one was.
local function cut(e)
  local too_far = e.deadline - now > tonumber(e.ttl)
  if too_far then e.deadline = now + e.ttl end
  return too_far
end

-- The waiter with this ticket, or the sharer with this id, which is one only while the lock says so.
local function entry(field)
  local deadline, record = string.match(call('HGET', QUEUE, field or '') or '', '^(%d+) (.*)$')
  local e = read(record)
  if e and e.token == 0 then
    e.ticket, e.deadline = field, tonumber(deadline)
  elseif e then
    e.deadline = is_shared() and tonumber(call('ZSCORE', SHARERS, field))
  end
  if not e or not e.deadline then return nil end
  if cut(e) then
    stepped = true
    save(e)
  end
  return e
end

-- What there is of this claim.
local function mine()
  if holder and holder.id == id then return holder end
  return ticket and entry(ticket) or is_shared() and entry(id)
end

-- The lease of an exclusive hold from before is that of the key.
local function look_at_lease()
  if holder.deadline then return end
  holder.deadline = now + call('PTTL', LOCK)
  if cut(holder) then call('PEXPIRE', LOCK, holder.ttl) end
end

-- Writes a lease. The key comes first: a server whose memory is full takes that, and whatever a script writes after it.
local function keep(e)
  call('PEXPIRE', e == holder and LOCK or QUEUE, math.max(e.deadline, e == holder and now + 1 or lives) - now)
  save(e)
end

-- A waiter leaves the queue.
local function leave(e)
  if e.ticket == ticket then ticket = nil end
  if waiters() == 1 and not is_shared() then
    call('DEL', QUEUE)
    tickets, gone, gaps, lives, moved = 0, 0, 0, 0, false
    return
  end
  call('HDEL', QUEUE, e.ticket, e.id)
  moved = true
  if e.ticket == gone + 1 then gone = e.ticket else gaps = gaps + 1 end
end

-- Removes a holder or a waiter.
local function drop(e)
  if e.ticket then return leave(e) end
  changed, holder_changed = true, true
  if e ~= holder then
    call('HDEL', QUEUE, e.id)
    call('ZREM', SHARERS, e.id)
    taken = taken - e.n
  end
  if e == holder or call('ZCARD', SHARERS) == 0 then holder, kind = nil, nil end
end

-- Counts the lease from now, unless it lasts longer already. The attempt is the latest that was seen: the server saw it before
-- now, so the lease never ends before that attempt's own would.
local function extend(e, ttl, attempt)
  if e == holder then look_at_lease() end
  if now + ttl < e.deadline then return end
  e.ttl, e.deadline, e.attempt = ttl, now + ttl, int(math.max(e.attempt, attempt))
end

local function fits(e)
  return not foreign and (not kind or kind == e.kind and taken + e.n <= tonumber(of))
end

-- Lets this one hold. The first sharer begins their set anew: another tool may have ended those of before.
local function hold(e)
  e.ticket, holder_changed = nil, true
  if e.kind == 'exclusive' then
    holder = e
  elseif not kind then
    call('UNLINK', SHARERS)
  end
  kind, taken, of = e.kind, (kind and taken or 0) + e.n, e.of
  save(e)
end

-- Gives the lock to this claim, until its deadline, with a token above every one before. A token is never below the clock, so the
-- fence matters only after the clock stepped back: it is kept for two hours past its own value.
local function grant(e)
  e.token, e.since, raised = math.max((tonumber(call('GET', FENCE)) or 0) + 1, micros), now, ' ' .. int(micros)
  local last = e.token + e.turns - 1
  call('SET', FENCE, int(last), 'EX', 7200 + math.max(0, math.ceil((last - micros) / 1000000)))
  hold(e)
end

-- Spends some of the budget, if there is any left.
local function spend(cost)
  exhausted = budget <= 0
  budget = budget - cost
  return not exhausted
end

-- The first waiter whose lease is not over; the dead ones before it are removed.
local function head()
  while gone < tickets do
    local e = entry(gone + 1)
    if is_live(e) then return e end
    if not spend(1) then return nil end
    if e then leave(e) else gone, gaps, moved = gone + 1, math.max(0, gaps - 1), true end
  end
end

-- Removes dead sharers, and admits waiters in their order, for what is left of each lease. Holders are before all waiters, so
-- the first waiter that does not fit ends it. Answers that one; none if an exclusive hold is before it, or the budget is exhausted.
local function admit_waiters()
  if holder then return nil end
  for _, of_id in ipairs(kind and call('ZRANGEBYSCORE', SHARERS, '-inf', now, 'LIMIT', 0, math.max(budget, 0) + 1) or {}) do
    if not spend(1) then return nil end
    drop(entry(of_id) or { id = of_id, n = 0 })
  end
  local e = head()
  while e and fits(e) do
    if not spend(ADMISSION) then return nil end
    leave(e)
    grant(e)
    notified[#notified + 1] = e
    e = not holder and head()
  end
  -- The dead behind the first are not to begin their last lease one after the other.
  for n = gone + 2, stepped and math.min(tickets, gone + 100) or 0 do entry(n) end
  return e
end

-- Writes what has changed, and then publishes.
local function commit()
  if lives > 0 and waiters() <= 0 and not is_shared() then
    call('DEL', QUEUE)
  elseif moved then
    call('HSET', QUEUE, 'h', gone, 'g', gaps)
  end
  local observed = changed and not unobserved and call('EXISTS', OBSERVED) == 1
  if changed and holder then
    if holder.flag ~= '.' then holder.flag = observed and '*' or waiters() > 0 and '+' or '-' end
    call('SET', LOCK, text_of(holder), 'PX', math.max(1, holder.deadline - now))
  elseif changed and kind then
    local left = math.max(1, call('ZREVRANGE', SHARERS, 0, 0, 'WITHSCORES')[2] - now)
    call('SET', LOCK, '=' .. kind .. ' ' .. taken .. ' ' .. of, 'PX', left)
    call('PEXPIRE', SHARERS, left)
  elseif changed then
    call('DEL', LOCK)
  elseif holder and holder.flag == '-' and waiters() > 0 then
    call('SETRANGE', LOCK, 0, '+')
  end
  for _, e in ipairs(notified) do
    call('PUBLISH', e.channel, e.token == 0 and 'again ' .. e.id or
      table.concat({ 'granted', e.id, int(e.token), e.turns, e.attempt, e.ttl, LOCK }, ' '))
  end
  if observed and holder_changed then call('PUBLISH', 'leasehold:name:' .. LOCK, '') end
end

-- If the fence was raised, with the server's clock: from now on the client may guess it, and take the fast path.
local function granted(e)
  return 'granted ' .. int(e.token) .. ' ' .. e.turns .. raised
end

-- What is in the way: `kind token held_for others left rank label`, where kind is `ours`, or `foreign` if another tool holds it.
-- `e` is the claim, if it waits: it is not counted among the others, and the rank is its. To be called before `commit`, which
-- writes the deadlines that this corrects.
local function refusal(word, e)
  local h = holder
  if h then
    look_at_lease()
  elseif kind then
    h = entry(call('ZRANGE', SHARERS, 0, 0)[1])
    -- The sharers that seem to last longest are those from before a step of the clock.
    for _ = 1, 10 do
      local top = call('ZREVRANGE', SHARERS, 0, 0, 'WITHSCORES')
      local last = entry(top[1])
      if not last or last.deadline == tonumber(top[2]) then break end
    end
  end
  return table.concat({ word, h and 'ours' or 'foreign', int(h and h.token or 0), h and math.max(0, now - h.since) or 0,
    waiters() - (e and 1 or 0), h and h.deadline - now or call('PTTL', LOCK), e and e.ticket - gone - 1 or 0,
    h and h.label or '' }, ' ')
end

-- The whole queue in its order, without the dead: a walk. The dead holders were removed before.
local function all()
  local fields, queue = call('HGETALL', QUEUE), {}
  for i = 1, #fields, 2 do
    local deadline, record = string.match(fields[i + 1], '^(%d+) (.*)$')
    local e = read(record)
    if e and (e.token == 0 and tonumber(deadline) > now or is_shared() and call('ZSCORE', SHARERS, e.id)) then
      e.rank = e.token == 0 and tonumber(fields[i]) or e.token - 2 ^ 53
      queue[#queue + 1] = e
    end
  end
  table.sort(queue, function(a, b) return a.rank < b.rank end)
  if holder then table.insert(queue, 1, holder) end
  return queue
end

