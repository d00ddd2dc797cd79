-- What there is of a name: its holders and its waiters.

-- The exclusive holder, if there is one; in any case, the permits taken of this kind. Renewals extend the key and not the record.
if found == nil then found = call('GET', LOCK) end
local holder = read(found)
local kind, taken, of = 'exclusive', 1, 1
if not holder then
  kind, taken, of = string.match(found or '', '^=(%l+) (%d+) (%d+)$')
end
local foreign = found and not kind
-- What was changed by hand into another type fails here, before anything is written.
if kind and not holder then
  call('ZCARD', SHARERS)
  call('HLEN', RECORDS)
end
-- An exclusive hold says whether it may be observed. Otherwise the key has to be asked.
local unobserved = holder and (holder.flag == '-' or holder.flag == '+')

-- A number that can be counted with, or 0.
local function count(text)
  local n = tonumber(text)
  return n and n >= 0 and n < 9e15 and n or 0
end

-- The numbers of the queue, the permits that a waiter said, and the ticket of this claim.
local numbers = call('HMGET', QUEUE, 't', 'h', 'n', 'x', 'p', id or '')
local tickets, gone, waiters, lives = count(numbers[1]), count(numbers[2]), count(numbers[3]), count(numbers[4])
local permits, ticket = numbers[5], tonumber(numbers[6])

-- What is to be written at the end: whether the lock changed, and the numbers of the queue; whether what observers see changed;
-- which waiters are notified. Whether there is more to do than one script may. Whether the clock was seen to have stepped back.
local changed, moved, holder_changed, notified, exhausted, stepped = false, false, false, {}, false, false

local function is_live(e)
  return e and (e == holder or e.deadline > now)
end

-- Writes a place.
local function put(e, record)
  call('HSET', QUEUE, e.id, e.ticket, e.ticket, e.deadline .. ' ' .. record, 't', tickets, 'n', waiters,
    'x', math.max(lives, e.deadline))
  if e.deadline > lives then
    lives = e.deadline
    call('PEXPIRE', QUEUE, lives - now)
  end
end

-- Writes an entry; `commit` writes that of an exclusive holder.
local function save(e)
  if e.token == 0 then return put(e, text_of(e)) end
  changed = true
  if e == holder then return end
  call('HSET', RECORDS, e.id, text_of(e))
  call('ZADD', SHARERS, e.deadline, e.id)
end

-- No lease is further away than its own length, or the clock has stepped back. Says whether this one was.
local function cut(e)
  local too_far = e.deadline - now > tonumber(e.ttl)
  if too_far then e.deadline = now + e.ttl end
  return too_far
end

-- This entry with this deadline, if there are both.
local function checked(e, deadline)
  if not e or not deadline then return nil end
  e.deadline = tonumber(deadline)
  if cut(e) then
    stepped = true
    save(e)
  end
  return e
end

-- The waiter with this ticket.
local function waiter(n)
  local deadline, record = string.match(call('HGET', QUEUE, n) or '', '^(%d+) (.*)$')
  local e = read(record)
  if e then e.ticket, e.token, e.floor = n, 0, e.token end
  return checked(e, deadline)
end

-- The sharer with this id, while the lock says that sharers hold.
local function sharer(of_id)
  return checked(read(call('HGET', RECORDS, of_id)), call('ZSCORE', SHARERS, of_id))
end

-- The lease of an exclusive hold from before is that of the key.
local function look_at_lease()
  if holder.deadline then return end
  holder.deadline = now + call('PTTL', LOCK)
  if cut(holder) then call('PEXPIRE', LOCK, holder.ttl) end
end

-- A waiter leaves the queue.
local function leave(e)
  if e.ticket == ticket then ticket = nil end
  if waiters <= 1 then
    call('DEL', QUEUE)
    tickets, gone, waiters, lives, permits, moved = 0, 0, 0, 0, false, false
    return
  end
  call('HDEL', QUEUE, e.ticket, e.id, 'f' .. e.ticket)
  if e.ticket == gone + 1 then gone = e.ticket end
  waiters, moved = waiters - 1, true
end

-- What is in the way: `kind token held_for others left rank label`, where kind is `ours`, or `foreign` if another tool holds it.
-- `e` is the claim, if it waits: it is not counted among the others, and the rank is its. To be called before `commit`, which
-- writes the deadlines that this corrects.
local function refusal(word, e)
  local h = holder
  if h then
    look_at_lease()
  elseif kind then
    h = sharer(call('ZRANGE', SHARERS, 0, 0)[1] or '')
    -- The sharers that seem to last longest are those from before a step of the clock.
    for _ = 1, 10 do
      local top = call('ZREVRANGE', SHARERS, 0, 0, 'WITHSCORES')
      local last = top[1] and sharer(top[1])
      if not last or last.deadline == tonumber(top[2]) then break end
    end
  end
  -- No more places are before a claim than waiters are there: the others have left.
  return table.concat({ word, h and 'ours' or 'foreign', int(h and h.token or 0), h and math.max(0, now - h.since) or 0,
    waiters - (e and 1 or 0), h and h.deadline - now or call('PTTL', LOCK),
    e and math.max(0, math.min(e.ticket - gone, waiters) - 1) or 0, h and h.label or '' }, ' ')
end

