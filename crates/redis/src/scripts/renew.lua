-- Extends what is still there, granted or waiting.
-- ARGV: id, ttl, attempt, token (empty while waiting)
-- Answers `granted token turns`, `waiting`, or `gone`.
local id, ttl, attempt, token = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if holder == id then
  local h = hold()
  if h and token ~= '' and token ~= h.token then return 'gone' end
  redis.call('PEXPIRE', LOCK, ttl)
  redis.call('PEXPIRE', HOLD, ttl)
  -- Without the hold its token is unknown here; the holder knows it, and a waiter learns it by claiming again.
  if not h then return 'waiting' end
  return granted(h)
end
local p = token == '' and place_of(id)
if not p then return 'gone' end
p.ttl = ttl
if not holder then
  -- The holder died without a release.
  if head() == id then
    local h = grant(id, p, ttl)
    leave(id)
    return granted(h)
  end
  hand_over()
end
write_place(id, p, attempt)
return 'waiting'
