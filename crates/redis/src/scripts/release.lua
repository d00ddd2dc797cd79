-- Removes every trace of an id, granted or waiting, and never leaves a free lock beside a live waiter.
-- ARGV: id
local id = ARGV[1]
if holder == id then
  redis.call('DEL', LOCK, HOLD)
  holder = false
else
  leave(id)
end
if not holder then hand_over() end
return 'ok'
