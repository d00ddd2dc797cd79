-- Lets a hold end by itself. Nothing extends it, and it ends no later if this is repeated. A waiter is removed.
-- ARGV: id, in how many milliseconds
-- Answers `ok`, or `more`: it is done, and others are yet to be admitted or notified.
local rest = ARGV[2]
admit_waiters()
local e = mine()
if e and e.ticket then
  drop(e)
  admit_waiters()
elseif is_live(e) then
  if e == holder then look_at_lease() end
  e.deadline = e.flag == '.' and math.min(e.deadline, now + rest) or now + rest
  e.ttl, e.flag = rest, '.'
  keep(e)
  -- The next waiters ask when it ends, the first one above all.
  head()
  for n = gone + 1, math.min(tickets, gone + 8) do notified[#notified + 1] = waiter(n) end
end
commit()
return exhausted and 'more' or 'ok'
