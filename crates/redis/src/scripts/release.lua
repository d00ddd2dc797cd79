-- Removes every trace of an id, granted or waiting, and never leaves room beside a live waiter that fits.
-- ARGV: id
local e = get(ARGV[1])
if e then drop(e) end
settle()
commit()
return 'ok'
