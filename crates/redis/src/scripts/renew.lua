-- Extends what is still there, granted or waiting.
-- ARGV: id, ttl, attempt, token (0 while waiting)
-- Answers `granted token turns`, `waiting`, or `gone`; or `more`: it was extended, and others are yet to be admitted.
local _, ttl, attempt, token = unpack(ARGV)
admit_waiters()
local e = mine()
local lost = not is_live(e) or e.flag == '.' or token ~= '0' and tonumber(token) ~= e.token
if not lost then
  extend(e, ttl, attempt)
  keep(e)
end
commit()
return lost and 'gone' or e.token > 0 and granted(e) or exhausted and 'more' or 'waiting'
