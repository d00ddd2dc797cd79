-- Ends the hold that this token, or one of its turns, belongs to, and tells its client.
-- ARGV: token
-- Answers `evicted` or `none`.
local holder = redis.call('GET', LOCK)
local h = hold_of(holder)
local token = tonumber(ARGV[1])
if not h or token < h.token or token >= h.token + h.turns then return 'none' end
redis.call('DEL', LOCK, HOLD)
redis.call('PUBLISH', h.channel, 'evicted ' .. holder)
hand_over()
return 'evicted'
