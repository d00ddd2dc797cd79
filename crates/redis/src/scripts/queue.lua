-- The queue: who is admitted next, and what a script writes at its end.

-- What there is of this claim.
local function mine()
  if holder and holder.id == id then return holder end
  return ticket and waiter(ticket) or kind and not holder and sharer(id)
end

-- Writes a lease. The key comes first: a server whose memory is full takes that, and whatever a script writes after it.
local function keep(e)
  call('PEXPIRE', e == holder and LOCK or QUEUE, math.max(e.deadline, e == holder and now + 1 or lives) - now)
  save(e)
end

-- Removes a holder or a waiter.
local function drop(e)
  if e.ticket then return leave(e) end
  changed, holder_changed = true, true
  if e ~= holder then
    call('HDEL', RECORDS, e.id)
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

-- Lets this one hold. The first sharer begins their keys anew: those of before have died, or another tool ended them.
local function hold(e)
  e.ticket, holder_changed = nil, true
  if e.kind == 'exclusive' then
    holder = e
  elseif not kind then
    call('UNLINK', SHARERS, RECORDS)
  end
  kind, taken, of = e.kind, (kind and taken or 0) + e.n, e.of
  save(e)
end

-- Gives the lock to this claim, until its deadline.
local function grant(e)
  number(e)
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
  while waiters > 0 and gone < tickets do
    local e = waiter(gone + 1)
    if is_live(e) then return e end
    -- A place that was left costs little: one that comes late to a long queue is not to be kept waiting for all of them.
    if not spend(e and 1 or 1 / 32) then return nil end
    if e then leave(e) else gone, moved = gone + 1, true end
  end
end

-- Removes dead sharers, and admits waiters in their order, for what is left of each lease. Holders are before all waiters, so
-- the first waiter that does not fit ends it. Answers that one; none if an exclusive hold is before it, or the budget is exhausted.
local function admit_waiters()
  if holder then return nil end
  for _, of_id in ipairs(kind and call('ZRANGEBYSCORE', SHARERS, '-inf', now, 'LIMIT', 0, math.ceil(math.max(budget, 0)) + 1) or {}) do
    if not spend(1) then return nil end
    drop(sharer(of_id) or { id = of_id, n = 0 })
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
  for n = gone + 2, stepped and math.min(tickets, gone + 100) or 0 do waiter(n) end
  return e
end

-- Writes what has changed, and then publishes.
local function commit()
  if moved then call('HSET', QUEUE, 'h', gone, 'n', waiters) end
  local observed = changed and not unobserved and call('EXISTS', OBSERVED) == 1
  if changed and holder then
    if holder.flag ~= '.' then holder.flag = observed and '*' or waiters > 0 and '+' or '-' end
    call('SET', LOCK, text_of(holder), 'PX', math.max(1, holder.deadline - now))
  elseif changed and kind then
    -- A score that was changed by hand may be more than a lease, or no whole number: that would stop the script here.
    local last = call('ZREVRANGE', SHARERS, 0, 0, 'WITHSCORES')[2]
    local left = math.max(1, math.floor(math.min(last - now, 9e12)))
    call('SET', LOCK, '=' .. kind .. ' ' .. taken .. ' ' .. of, 'PX', left)
    call('PEXPIRE', SHARERS, left)
    call('PEXPIRE', RECORDS, left)
  elseif changed then
    call('DEL', LOCK)
  elseif holder and holder.flag == '-' and waiters > 0 then
    call('SETRANGE', LOCK, 0, '+')
  end
  for _, e in ipairs(notified) do notify(e) end
  if observed and holder_changed then call('PUBLISH', 'leasehold:name:' .. LOCK, '') end
end

-- The answer to a claim that holds.
local function granted(e)
  return 'granted ' .. int(e.token) .. ' ' .. e.turns
end

