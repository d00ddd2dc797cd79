-- Removes every trace of an id, granted or waiting, and never leaves room beside a live waiter that fits.
-- Answers `ok`, or `more`: the id is gone, and others are yet to be admitted.
local e = mine()
if e then drop(e) end
admit_waiters()
commit()
return exhausted and 'more' or 'ok'
