-- Extends what is still there, granted or waiting.
-- ARGV: id, ttl, attempt, token (empty while waiting)
-- Answers `granted token turns`, `waiting`, or `gone`.
local ttl, token = ARGV[2], tonumber(ARGV[4])

admit_waiters()
local e = get(ARGV[1])
local gone = not is_live(e) or is_closed(e) or token and token ~= e.token
if not gone then
  extend(e, ttl, ARGV[3])
  -- These come first: a server whose memory is full takes them, and whatever a script writes after them.
  if e == holder then
    call('PEXPIRE', LOCK, e.deadline - now)
  else
    outlive(ENTRIES, ttl)
  end
  save(e)
end
commit()
return gone and 'gone' or e.token > 0 and granted(e) or 'waiting'
