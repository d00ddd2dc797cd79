-- Ends the hold that this token, or one of its turns, belongs to, and tells its client.
-- ARGV: token
-- Answers `evicted` or `none`.
local h = hold()
local turn = h and tonumber(ARGV[1]) - h.token
if not h or turn < 0 or turn >= tonumber(h.turns) then return 'none' end
redis.call('DEL', LOCK, HOLD)
redis.call('PUBLISH', h.channel, 'evicted ' .. holder)
hand_over()
return 'evicted'
