-- Records that the work of this claim is done, and ends its hold, in one step. Asked again, it answers the same and writes nothing.
-- ARGV: id, token, the number of the fire, for how many milliseconds it counts or -1, the flag of the result, label, result
-- Answers `done …`, with the ticket behind which there may be more waiters to be told; or `lost`, and nothing is written: this claim does
-- not hold with this token; or `unreadable`.
record()
drop(holder)
local more = serve(fire, 0)
commit()
return more and { done_by(done, lasts), more } or done_by(done, lasts)
