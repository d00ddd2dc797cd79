-- Lets a hold end by itself. Nothing extends it, and it ends no later if this is repeated. A waiter is removed.
-- ARGV: id, in how many milliseconds
-- Answers `ok`, or `more`: it is done, and others are yet to be admitted.
local rest = ARGV[2]
admit_waiters()
local e = get(ARGV[1])
if e and e.token == 0 then
  drop(e)
  admit_waiters()
elseif is_live(e) then
  e.deadline, e.ttl = is_closed(e) and math.min(e.deadline, now + rest) or now + rest, rest
  e.attempt = CLOSED
  save(e)
  -- The next waiters ask when it ends.
  for _, id in ipairs(call('ZRANGE', QUEUE, 0, 7)) do
    notified[#notified + 1] = get(id)
  end
end
commit()
return exhausted and 'more' or 'ok'
