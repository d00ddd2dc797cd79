-- Ends the hold that this token, or one of its turns, belongs to, and notifies its client. Token 0 is that of another tool's hold.
-- ARGV: token
-- Answers `evicted` or `none`; or `more`, and it counts once it is called again. After `evicted more` others are yet to be admitted.
local token, evicted = tonumber(ARGV[1]), nil
admit_waiters()
if exhausted then
  commit()
  return 'more'
end
if foreign and token == 0 then
  call('DEL', LOCK)
  found[1], foreign = false, nil
  holder_changed = true
  admit_waiters()
  commit()
  return exhausted and 'evicted more' or 'evicted'
end
for _, id in ipairs(holder and { holder.id } or call('ZRANGE', SHARERS, 0, -1)) do
  local e = get(id)
  if e and e.token <= token and token < e.token + e.turns then evicted = e end
end
if evicted then
  drop(evicted)
  admit_waiters()
end
commit()
if not evicted then return 'none' end
call('PUBLISH', evicted.channel, 'evicted ' .. evicted.id)
return exhausted and 'evicted more' or 'evicted'
