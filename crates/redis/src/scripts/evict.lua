-- Ends the hold that this token, or one of its turns, belongs to, and notifies its client; or another tool's, if its value is the one
-- with this hash.
-- ARGV: token, and the start of a hash or nothing
-- Answers `evicted` or `none`; or `more`, and it counts once it is called again. After `evicted more` others are yet to be admitted.
local token, hash = tonumber(ARGV[1]), ARGV[2]
local evicted = foreign and hash and string.sub(redis.sha1hex(found), 1, #hash) == hash
admit_waiters()
if exhausted then
  commit()
  return 'more'
end
if evicted then
  call('DEL', LOCK)
  foreign, changed, holder_changed = nil, true, true
end
for _, e in ipairs(holding()) do
  if e.token <= token and token < e.token + e.turns then
    drop(e)
    call('PUBLISH', e.channel, 'evicted ' .. e.id)
    evicted = true
  end
end
if evicted then admit_waiters() end
commit()
return evicted and (exhausted and 'evicted more' or 'evicted') or 'none'
