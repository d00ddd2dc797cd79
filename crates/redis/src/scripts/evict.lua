-- Ends the hold that this token, or one of its turns, belongs to, and tells its client.
-- ARGV: token
-- Answers `evicted` or `none`.
local token, evicted = tonumber(ARGV[1]), nil
settle()
for _, id in ipairs(holder and { holder.id } or call('ZRANGE', SHARERS, 0, -1)) do
  local e = get(id)
  if e and e.token <= token and token < e.token + e.turns then evicted = e end
end
if evicted then
  drop(evicted)
  settle()
end
commit()
if not evicted then return 'none' end
call('PUBLISH', evicted.channel, 'evicted ' .. evicted.id)
return 'evicted'
