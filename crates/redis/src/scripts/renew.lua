-- Extends what is still there, granted or waiting. Whoever comes next goes on where more is to be done than one script may.
-- ARGV: id, ttl, attempt, token (0 while waiting)
-- Answers `granted token turns`, with a greater token if the hold was raised; `waiting`, or `gone`.
local _, ttl, attempt, token = unpack(ARGV)
admit_waiters()
local e = mine()
local lost = not is_live(e) or e.flag == '.' or token ~= '0' and (e.token == 0 or tonumber(token) > e.token)
if not lost then
  -- The attempt of a hold orders its labels, and a renewal brings none.
  extend(e, ttl, e.token > 0 and e.attempt or attempt)
  keep(e)
end
commit()
return lost and 'gone' or e.token > 0 and granted(e) or 'waiting'
