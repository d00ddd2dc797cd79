-- Answers `done …`, nothing, or `unreadable`.
local done = completion()
if done and not done.id then return 'unreadable' end
return done and done_by(done)
