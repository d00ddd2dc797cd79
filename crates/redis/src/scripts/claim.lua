-- Takes or keeps a place, in one step.
-- ARGV: id, ttl, turns, and the record without its flag, id, token and since, in two parts: `kind n of ttl turns attempt` and
-- `channel label`; `tries` if it only tries, or `waits`; and the floor, if there is one.
-- Answers `granted token turns` (the fast path: the token alone); `differ of` if the queue has another number of permits; `waiting` (to
-- a newcomer that only tries: `busy`) and what is in the way; or `more`, and it counts once it is called again.
local before, waits = admit_waiters(), tries ~= 'tries'
floor = tonumber(floor or 0)
local asked, e = read('-' .. id .. ' 0 ' .. terms .. ' ' .. now .. ' ' .. who), mine()
asked.deadline, asked.floor = now + ttl, floor
if exhausted then
  commit()
  return 'more'
elseif is_live(e) and e.flag == '.' then
  waits, e = false, asked
elseif not is_live(e) then
  if e then drop(e) end
  e = asked
  -- All in the queue say the same number. What the last waiter said counts only while one is there that says it.
  local theirs = kind == 'permits' and of
  if e.kind == 'permits' and not theirs and permits and permits ~= e.of then
    for _, other in ipairs(waiting()) do theirs = other.kind == 'permits' and other.of or theirs end
  end
  if e.kind == 'permits' and theirs and theirs ~= e.of then
    commit()
    return 'differ ' .. theirs
  end
  if not before and fits(e) then
    grant(e)
  elseif waits then
    tickets, waiters = tickets + 1, waiters + 1
    e.ticket = tickets
    save(e)
    if e.kind == 'permits' and permits ~= e.of then call('HSET', QUEUE, 'p', e.of) end
  end
else
  -- Known: a new lease, the label of the latest attempt, and the same token and mode, but for a downgrade.
  waits = true
  if tonumber(asked.attempt) >= tonumber(e.attempt) then
    holder_changed = holder_changed or e.token > 0 and e.label ~= asked.label
    e.channel, e.label = asked.channel, asked.label
    -- That of a place is the attempt that its lease counts from.
    if e.token > 0 then e.attempt = asked.attempt end
  end
  extend(e, ttl, asked.attempt)
  if floor > math.max(e.token, e.floor or 0) then
    e.floor, holder_changed = floor, holder_changed or e.token > 0
    if e.token > 0 then number(e, e == holder and floor) end
  end
  if e == holder and asked.kind == 'shared' then
    holder, kind = nil, nil
    e.kind, e.n, e.of, e.flag = asked.kind, asked.n, asked.of, '-'
    hold(e)
    admit_waiters()
  else
    save(e)
  end
end
local answer = exhausted and 'more' or e.token > 0 and granted(e) or refusal(waits and 'waiting' or 'busy', waits and e)
commit()
return answer
