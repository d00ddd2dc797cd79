-- Removes the completion with this token.
-- ARGV: token
-- Answers 1, or 0 if there is none with this token; or `unreadable`.
local done = completion()
if done and not done.id then return 'unreadable' end
return done and done.token == ARGV[1] and redis.call('DEL', COMPLETION) or 0
